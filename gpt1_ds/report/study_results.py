"""Reads the folder of a study: its description (study.json) and the scores of its finished cells, as results.csv."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from gpt1_ds.common.files import read_json
from gpt1_ds.common.rundir import RunDir, read_jsonl, why_diverged
from gpt1_ds.report import paper
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tracking.record import of_run, read_entries

SPLITS = {  # MNLI has two, and the paper's Table 5 their mean
    "dev": ("dev", "dev_mm"),
    "test": ("test", "test_mm"),
    "unseen": ("test", "test_mm", "half", "dev_mm"),  # test where it has labels, else what of dev chose nothing
}
Key = tuple[str, str, int | None]  # task, variant or control, seed; controls have none


@dataclass(frozen=True)
class StudyScore:
    """A line of results.csv: one metric of one split, by the best epoch's checkpoint."""

    task: str  # its name in the study
    variant: str  # or a control (tasks/controls.py), which has no seed, seconds or step
    seed: int | None
    split: str
    metric: str
    value: float | None  # as in eval.json, not x 100; None: not defined
    seconds: float | None  # that the cell trained and evaluated; segments that were killed do not count
    step: int | None  # of the best epoch
    choice: str = ""  # of the values that the cell tried (the study's `choose`), the best on dev


@dataclass(frozen=True)
class Column:
    """A task of the study. `task`: its name in the registry; `metric`: its first one; `table`: not on a curve only;
    `examples`: to train on, where the study limits them.
    """

    name: str
    task: str
    metric: str
    table: bool
    examples: int | None = None

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
    cells: Mapping[Key, Path]  # its run folder; of several trials the one that dev chose, once all are done
    curve: tuple[tuple[int, Key], ...]  # (layers taken, cell) of the layer-transfer figure
    scores: tuple[StudyScore, ...]
    failed: dict[str, str]  # cell's folder -> why it failed the last time
    diverged: tuple[tuple[str, str], ...] = ()  # (folder, why) of each cell whose model or all of whose trials diverged
    split: str = "dev"  # that the table shows
    compare: tuple[dict[str, Any], ...] = ()  # as the study's file has it
    control_rows: tuple[str, ...] = ()  # of the variants

    @property
    def columns(self) -> list[Column]:
        return [task for task in self.tasks if task.table]

    @property
    def done(self) -> int:
        return len({(score.task, score.variant, score.seed) for score in self.scores if score.seed is not None})

    @property
    def has_paper(self) -> bool:
        """Whether the paper prints a number for a row and a column of the table."""
        tasks = [column.task for column in self.columns]
        return any(paper.printed_score(row, task) is not None for row in self.variants for task in tasks)

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
            if score.split in self.splits[score.task] and score.metric == metric[score.task]:
                found.setdefault((score.task, score.variant, score.seed), []).append(score.value)
        return {
            key: 100 * fmean(x for x in values if x is not None) for key, values in found.items() if None not in values
        }

    @cached_property
    def splits(self) -> dict[str, tuple[str, ...]]:
        """Task -> the splits whose mean the table shows."""
        shown = {}
        for task in self.tasks:
            there = {score.split for score in self.scores if score.task == task.name}
            found = tuple(split for split in SPLITS[self.split] if split in there)
            tests = tuple(split for split in found if split in SPLITS["test"])
            shown[task.name] = tests or found
        return shown

    @cached_property
    def seconds(self) -> dict[Key, float]:
        return {(score.task, score.variant, score.seed): score.seconds or 0.0 for score in self.scores}


def read_study_results(folder: Path) -> Results:
    """Returns the study in `folder`, which holds study.json."""
    values = read_json(RunDir(folder).study)
    trials: dict[Key, dict[Path, str]] = {}
    for cell in values["cells"]:
        key = (cell["task"], cell["variant"], cell["seed"])
        trials.setdefault(key, {})[folder / cell["folder"]] = cell.get("choice", "")
    tasks = {task["name"]: Column(**task) for task in values["tasks"]}
    places = {key: _chosen(list(tried), tasks[key[0]].metric) for key, tried in trials.items()}
    found = ((key, place, trials[key][place]) for key, place in places.items())
    return Results(
        name=values["name"],
        checkpoint=values["checkpoint"],
        tasks=tuple(tasks.values()),
        variants=tuple(values["variants"]),
        seeds=tuple(values["seeds"]),
        cells=places,
        curve=tuple(
            (point["layers"], (point["task"], point["variant"], point["seed"])) for point in values["layer_transfer"]
        ),
        scores=(
            *(score for cell in found for score in _scores(*cell)),
            *(score for score in _controls(folder) if score.task in tasks),  # those of a task that was taken out stay
        ),
        failed=_failed(RunDir(folder), {cell["folder"] for cell in values["cells"]}),
        diverged=tuple(
            (os.path.relpath(place, folder), why) for place in places.values() if (why := _divergence(RunDir(place)))
        ),
        split=values.get("split", "dev"),
        compare=tuple(values.get("compare", ())),
        control_rows=tuple(values.get("controls", ())),
    )


def _chosen(tried: Sequence[Path], metric: str) -> Path:
    """Returns the trial with the best dev score, the first of equals; while one is not done, that one. One that
    diverged is worse than all others: it would diverge again.
    """
    judged, scores = [place for place in tried if not _divergence(RunDir(place))], []
    if len(tried) == 1 or not judged:
        return tried[0]
    for place in judged:
        if not _is_done(RunDir(place)):
            return place
        entries = of_run(read_entries(RunDir(place).evaluation))
        values = [entry["metrics"].get(metric) for entry in entries if entry["split"] == "dev"]
        scores.append(next((value for value in values if value is not None), -math.inf))
    return judged[scores.index(max(scores))]


def _divergence(cell: RunDir) -> str:
    """Returns why its last start diverged, or nothing."""
    return "" if _is_done(cell) else why_diverged(list(read_jsonl(cell.events)))


def _is_done(cell: RunDir) -> bool:
    return cell.done.exists() and cell.evaluation.exists()


def write_csv(results: Results, path: Path) -> None:
    """One line per cell, split and metric, under the names of StudyScore's fields."""
    write_table(path, [field.name for field in fields(StudyScore)], map(asdict, results.scores))


def _scores(key: Key, place: Path, choice: str) -> Iterator[StudyScore]:
    cell = RunDir(place)
    if not _is_done(cell):
        return
    stops = [event for event in read_jsonl(cell.events) if event["event"] == "stopped"]
    seconds = round(sum(event["seconds"] for event in stops), 3)
    for entry in of_run(read_entries(cell.evaluation)):
        for metric, value in entry["metrics"].items():
            yield StudyScore(*key, entry["split"], metric, value, seconds, entry["step"], choice)


def _controls(folder: Path) -> Iterator[StudyScore]:
    for task, entry in read_json(folder / "controls.json", missing={}).items():
        for score in entry["scores"]:
            yield StudyScore(task, score["control"], None, score["split"], score["metric"], score["value"], None, None)


def _failed(study: RunDir, cells: Collection[str]) -> dict[str, str]:
    """Returns why cells failed whose last event is a failure, of these `cells`, apart from those that diverged."""
    last = {event["cell"]: event for event in read_jsonl(study.events) if event.get("cell") in cells}
    failed = {cell: event["reason"] for cell, event in last.items() if event["event"] == "failed"}
    return {cell: reason for cell, reason in failed.items() if not _divergence(RunDir(study.path / cell))}
