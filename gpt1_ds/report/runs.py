"""Reads a run folder: metrics, configuration, events, samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.architecture.count import parameters
from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import read_json
from gpt1_ds.common.rundir import RunDir, check_types, no_run, read_jsonl
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.config.task import PREFIX, SCALES
from gpt1_ds.tracking.record import flat, of_own_data, read_entries, read_records

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class RunStory:
    """One run, read from its folder."""

    name: str
    config: Config
    train: Records
    held_out: Records
    events: Records
    samples: Records
    evaluations: Records  # of all the held-out text, by `gpt1-ds evaluate`
    probes: dict[str, Records] = field(default_factory=dict)  # zero-shot scores by probe, each a step's metrics
    baselines: list[dict[str, Any]] = field(default_factory=list)  # n-gram scores of the run's dataset, if counted
    scores: Records = field(default_factory=list)  # a task's, while it was fine-tuned
    measured: Records = field(default_factory=list)  # by train.evaluations, while it was pre-trained
    entries: Records = field(default_factory=list)  # all of eval.json
    environment: dict[str, Any] = field(default_factory=dict)  # env.json: of the run's last start
    folder: Path = Path()

    @cached_property
    def columns(self) -> list[str]:
        """Returns what logged steps have a value of, in the order in which it first appears."""
        return list(dict.fromkeys(key for line in self.train for key, value in line.items() if value is not None))

    @property
    def parameters(self) -> int:
        return parameters(self.config.model, self.config.model.vocab_size or 0)


def read(folder: Path) -> RunStory:
    """Raises DataError for a folder that is no run, or one that has not logged a step yet."""
    run_dir = RunDir(folder)
    if not run_dir.config.exists():
        raise DataError(f"{folder}: {no_run(folder)}")
    lines = read_records(run_dir.metrics)
    if not lines:
        raise DataError(f"{folder}: metrics.jsonl has no step yet; run `gpt1-ds pretrain` first")
    config = load_recorded(run_dir.config)
    train = sorted((flat(line) for line in lines if line["kind"] == "train"), key=lambda line: int(line["step"]))
    if not train:
        raise DataError(f"{folder}: metrics.jsonl has no training step; run `gpt1-ds pretrain` first")
    entries = read_entries(run_dir.evaluation)
    return RunStory(
        name=config.run.name,
        config=config,
        train=train,
        held_out=[line for line in lines if line["kind"] == "eval"],
        events=_checked(run_dir.events, _EVENT, optional=tuple(_EVENT)),
        samples=_checked(folder / "samples.jsonl", _SAMPLE),
        evaluations=_evaluations(run_dir.evaluation, entries, "held-out", _HELD_OUT),
        probes=dict(_probes(run_dir.evaluation, entries)),
        baselines=_baselines(Path(config.data.path[0].path) / "ngrams.json"),
        scores=[line for line in lines if line["kind"] == "task"],
        measured=[line for line in lines if line["kind"] == "score"],
        entries=entries,
        environment=_environment(run_dir.environment),
        folder=folder,
    )


def read_all(folders: Sequence[Path]) -> list[RunStory]:
    """Returns stories of one page, each named by what not all share: of grid/GPT-1/seed-1 and grid/BERT/seed-1 the
    model.

    Raises DataError as `read` does.
    """
    stories = [read(folder) for folder in folders]
    parts = [story.name.split("/") for story in stories]
    for end in (0, -1):
        while len(stories) > 1 and min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
            for part in parts:
                del part[end]
    return [replace(story, name="/".join(part)) for story, part in zip(stories, parts, strict=True)]


_EVENT = {"step": "count", "steps": "count", "ranks": "count", "seconds": "number"}
_SAMPLE = {"step": "count", "prompt": "text", "text": "text"}
_HELD_OUT = {"loss": "number", "perplexity": "number", "bits_per_byte": "number"}
_BASELINE = {"order": "count", "loss": "number", "bits_per_byte": "number"}


def _checked(path: Path, kinds: Mapping[str, str], optional: Sequence[str] = ()) -> Records:
    """Returns the records of a JSONL file. Raises DataError for one whose values are of other kinds."""
    records = list(read_jsonl(path))
    for number, record in enumerate(records, 1):
        check_types(path, f"record {number}", record, kinds, optional)
    return records


def _baselines(path: Path) -> Records:
    found = read_json(path, missing=[])
    for number, record in enumerate(found if isinstance(found, list) else [found], 1):
        check_types(path, f"entry {number}", record, _BASELINE)
    return list(found)


def _environment(path: Path) -> dict[str, Any]:
    found = read_json(path, missing={})
    check_types(path, "the file", found, {})
    for key in ("gpt1_ds", "variables"):
        check_types(path, key, found.get(key, {}), {})
    return dict(found)


def _probes(path: Path, entries: Records) -> Iterator[tuple[str, Records]]:
    """Yields (name, scores by step) of each zero-shot probe that was asked."""
    for name, scale in SCALES.items():
        needed = {scale.metric: "finite number", "chance": "finite number", "examples": "finite number"}
        if scores := _evaluations(path, entries, PREFIX + name, needed, others="finite number"):
            yield name, scores


def _evaluations(path: Path, entries: Records, task: str, needed: Mapping[str, str], others: str = "number") -> Records:
    """Returns one task's scores of eval.json on the run's own data, by step. Raises DataError for scores that lack what
    is `needed`, or are of other kinds.
    """
    found: Records = []
    for entry in of_own_data(entries):
        if entry["task"] == task:
            kinds = {**dict.fromkeys(entry["metrics"], others), **needed}
            check_types(path, f"the result of {task} at step {entry['step']}", entry["metrics"], kinds)
            found.append({"step": entry["step"], **entry["metrics"]})
    return sorted(found, key=lambda entry: entry["step"])
