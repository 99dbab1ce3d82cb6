"""What a study's folder tells: its description (study.json) and the scores of its finished cells, as results.csv."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean

from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.report import paper
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tracking.entries import of_models

SPLITS = {"dev": ("dev", "dev_mm"), "test": ("test", "test_mm")}  # MNLI has two, and the paper's Table 5 their mean
Key = tuple[str, str, int | None]  # task, variant or control, seed; controls have none


@dataclass(frozen=True)
class Score:
    """A line of results.csv: one metric of one split, by the best epoch's checkpoint."""

    task: str  # its name in the study
    variant: str  # or a control (tasks/controls.py), which has no seed, seconds or step
    seed: int | None
    split: str
    metric: str
    value: float | None  # as in eval.json, not x 100; None: not defined
    seconds: float | None  # that the cell trained and evaluated; segments that were killed do not count
    step: int | None  # of the best epoch


@dataclass(frozen=True)
class Column:
    """A task of the study. `task`: its name in the registry; `metric`: its first one; `table`: not on a curve only."""

    name: str
    task: str
    metric: str
    table: bool

    @property
    def title(self) -> str:
        return paper.TITLES.get(self.task, self.name) if self.name == self.task else self.name


@dataclass(frozen=True)
class Results:
    """A study as far as it has come."""

    name: str
    checkpoint: str
    tasks: tuple[Column, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: tuple[Key, ...]
    curve: tuple[tuple[int, Key], ...]  # (layers taken, cell) of the layer-transfer figure
    scores: tuple[Score, ...]
    failed: dict[str, str]  # cell's folder -> why it failed the last time
    split: str = "dev"  # that the table shows

    @property
    def columns(self) -> list[Column]:
        return [task for task in self.tasks if task.table]

    @property
    def done(self) -> int:
        return len({(score.task, score.variant, score.seed) for score in self.scores if score.seed is not None})

    @property
    def has_paper(self) -> bool:
        """Whether the paper prints numbers for one of the rows."""
        return any(variant in paper.TABLE_5 for variant in self.variants)

    @property
    def controls(self) -> list[str]:
        """What stands below the variants, in the order of the file."""
        return list(dict.fromkeys(score.variant for score in self.scores if score.seed is None))

    @cached_property
    def points(self) -> dict[Key, float]:
        """Finished cell or control -> its task's metric x 100 on `split`. An undefined one leaves the cell out."""
        metric = {task.name: task.metric for task in self.tasks}
        found: dict[Key, list[float | None]] = {}
        for score in self.scores:
            if score.split in SPLITS[self.split] and score.metric == metric[score.task]:
                found.setdefault((score.task, score.variant, score.seed), []).append(score.value)
        return {
            key: 100 * fmean(x for x in values if x is not None) for key, values in found.items() if None not in values
        }

    @cached_property
    def seconds(self) -> dict[Key, float]:
        return {(score.task, score.variant, score.seed): score.seconds or 0.0 for score in self.scores}


def read_study(folder: Path) -> Results:
    """The study in `folder`, which holds study.json."""
    told = json.loads((folder / "study.json").read_text())
    places = {(cell["task"], cell["variant"], cell["seed"]): folder / cell["folder"] for cell in told["cells"]}
    return Results(
        name=told["name"],
        checkpoint=told["checkpoint"],
        tasks=tuple(Column(**task) for task in told["tasks"]),
        variants=tuple(told["variants"]),
        seeds=tuple(told["seeds"]),
        cells=tuple(places),
        curve=tuple(
            (point["layers"], (point["task"], point["variant"], point["seed"])) for point in told["layer_transfer"]
        ),
        scores=(*(score for key, place in places.items() for score in _scores(key, RunDir(place))), *_controls(folder)),
        failed=_failed(RunDir(folder)),
        split=told.get("split", "dev"),
    )


def write_csv(results: Results, path: Path) -> None:
    """One line per cell, split and metric, under the names of Score's fields."""
    write_table(path, [field.name for field in fields(Score)], map(asdict, results.scores))


def _scores(key: Key, cell: RunDir) -> Iterator[Score]:
    if not (cell.done.exists() and cell.evaluation.exists()):
        return
    stops = [event for event in read_jsonl(cell.events) if event["event"] == "stopped"]
    seconds = round(sum(event["seconds"] for event in stops), 3)
    for entry in of_models(json.loads(cell.evaluation.read_text())):
        for metric, value in entry["metrics"].items():
            yield Score(*key, entry["split"], metric, value, seconds, entry["step"])


def _controls(folder: Path) -> Iterator[Score]:
    file = folder / "controls.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for task, entry in known.items():
        for score in entry["scores"]:
            yield Score(task, score["control"], None, score["split"], score["metric"], score["value"], None, None)


def _failed(study: RunDir) -> dict[str, str]:
    """Cells whose last event is a failure."""
    last = {event["cell"]: event for event in read_jsonl(study.events) if "cell" in event}
    return {cell: event["reason"] for cell, event in last.items() if event["event"] == "failed"}
