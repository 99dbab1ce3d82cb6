"""A study as the paper's Table 5: means over seeds and 95 % intervals, beside the paper's own numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from gpt1_ds.common.text import duration
from gpt1_ds.report import paper
from gpt1_ds.report.study_results import Column, Results

MISSING = "-"
Intervals = Mapping[
    tuple[str, str], tuple[float, float]
]  # (task, row) -> 95 % interval over seeds and examples, points


@dataclass(frozen=True)
class Mean:
    """The mean of `seeds` runs, in points (x 100). `error`: the standard error of the mean; None of a single run."""

    mean: float
    error: float | None
    seeds: int
    seconds: float = 0.0  # of one run, on average

    def __str__(self) -> str:
        return f"{self.mean:.1f}"


@dataclass(frozen=True)
class StudyTable:
    """Rows of text. `wide` has the paper's shape; `long` has a row per task and variant."""

    head: list[str]
    wide: list[list[str]]
    long: list[list[str]]
    notes: list[str]


_SPLITS = {
    "dev": "The scores are those of the dev split, on which the best epoch is chosen as well.",
    "test": "The scores are those of the test split; the best epoch is chosen on dev.",
    "unseen": "The scores are those of the test split, where it has labels, else of a fixed half of dev; the best "
    "epoch is chosen on the rest of dev.",
}
LONG_HEAD = [
    "task",
    "variant",
    "metric",
    "mean",
    "95 % interval",
    "seeds",
    "their standard error",
    "time of a run",
    "paper",
]


def mean(values: Sequence[float], seconds: Sequence[float] = ()) -> Mean | None:
    """Returns the mean of values; None where there is no value."""
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error, len(values), fmean(seconds) if seconds else 0.0)


def cell_mean(results: Results, column: Column, variant: str) -> Mean | None:
    """Returns the mean of a variant or a control; None while no run is done."""
    keys = [(column.name, variant, seed) for seed in (*results.seeds, None)]
    there = [key for key in keys if key in results.points]
    return mean([results.points[key] for key in there], [results.seconds[key] for key in there])


def averaged(results: Results) -> list[Column]:
    """Returns the columns that `avg` is over: those of the paper's table beside the paper's rows, else all."""
    printed = [column for column in results.columns if column.task in paper.TASKS] if results.has_paper else []
    return printed or results.columns


def average(results: Results, variant: str) -> Mean | None:
    """Over the tasks for each seed, then over those seeds that have all of them."""
    names = [column.name for column in averaged(results)]
    whole = [seed for seed in (*results.seeds, None) if all((name, variant, seed) in results.points for name in names)]
    return mean([fmean(results.points[name, variant, seed] for name in names) for seed in whole])


def make_table(results: Results, intervals: Intervals | None = None) -> StudyTable:
    tasks, known = [column.task for column in averaged(results)], intervals or {}
    count = f" of {len(tasks)}" if len(tasks) < len(results.columns) else ""
    head = ["", f"avg{count}", *(column.title for column in results.columns)]
    wide = []
    for variant in (*results.variants, *results.controls):
        cells = [
            _with_interval(cell_mean(results, column, variant), known.get((column.name, variant)))
            for column in results.columns
        ]
        wide.append([variant, _text(average(results, variant)), *cells])
        numbers = [paper.printed_score(variant, column.task) for column in results.columns]
        if any(number is not None for number in numbers):
            wide.append([f"the paper's {variant}", *map(_text, (paper.printed_average(variant, tasks), *numbers))])
    rows = (*results.variants, *results.controls)
    long = [_entry(results, column, variant, known) for column in results.columns for variant in rows]
    return StudyTable(head, wide, long, _notes(results))


def _entry(results: Results, column: Column, variant: str, intervals: Intervals) -> list[str]:
    one, ends = cell_mean(results, column, variant), intervals.get((column.name, variant))
    measured = [
        _text(one),
        f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else MISSING,
        str(one.seeds if one else 0),
        f"{one.error:.1f}" if one and one.error is not None else MISSING,
        duration(one.seconds) if one else MISSING,
    ]
    printed = _text(paper.printed_score(variant, column.task))
    return [column.title, variant, paper.METRICS[column.metric], *measured, printed]


def as_markdown(results: Results, table: StudyTable, differences: Sequence[Sequence[str]] = ()) -> str:
    """Returns `differences`: a head and rows."""
    lines = [f"# {results.name}", "", progress(results), ""]
    lines += [*_markdown(table.head, table.wide), "", *_markdown(LONG_HEAD, table.long), ""]
    if differences:
        lines += [*_markdown(differences[0], differences[1:]), ""]
    lines += [f"* {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def progress(results: Results) -> str:
    words = f"{results.done} of {len(results.cells)} cells are done, from {results.checkpoint}"
    words += f"; {len(results.diverged)} diverged" if results.diverged else ""
    return f"{words}; {len(results.failed)} failed." if results.failed else f"{words}."


def _notes(results: Results) -> list[str]:
    names = ", ".join(column.title for column in averaged(results))
    notes = [
        "Points (x 100), mean over seeds ± the longer side of the 95 % interval (no ±: without answers to each "
        f"example). {MISSING}: not there (yet), or not defined, as a correlation of answers that are all the same. The "
        "metric of each task is listed below the table.",
        f"avg is the mean over {names}, for every seed that has them all.",
        f"The 95 % interval joins seeds and examples (gpt1_ds/tasks/comparison.py). {_SPLITS[results.split]}",
    ]
    if results.has_paper:
        notes.append(paper.NOTE)
    if results.controls:
        notes.append(
            f"{', '.join(results.controls)}: controls without pre-training, fitted on the same training examples "
            "(20,000 at most; gpt1_ds/tasks/controls.py). What does not exceed them shows no knowledge of language."
        )
    if any(column.task == "mnli" for column in results.columns):
        notes.append("MNLI is the mean of matched and mismatched where both are there.")
    return notes


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] * len(head)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, rule, *rows)]


def _text(value: Mean | float | None) -> str:
    return MISSING if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _with_interval(value: Mean | None, ends: tuple[float, float] | None) -> str:
    """Returns a score with the longer side of its interval; the other one can be cut at the end of the metric."""
    if value is None or ends is None:
        return _text(value)
    return f"{value} ± {max(value.mean - ends[0], ends[1] - value.mean):.1f}"
