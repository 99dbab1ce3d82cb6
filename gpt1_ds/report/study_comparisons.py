"""What a study's rows differ by, and how sure that is, from the answers that its cells gave to the same examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.report.study_results import Column, Results
from gpt1_ds.report.study_table import Intervals
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tasks.base import Numbers
from gpt1_ds.tasks.comparison import Estimate, combine, estimate, mean_estimate, slope_weights
from gpt1_ds.tasks.controls import STRONGEST, WORDS
from gpt1_ds.tasks.kinds.sentences import STS
from gpt1_ds.tasks.metrics import read_submission, submission_name
from gpt1_ds.tasks.token_metrics import objects

AVERAGE, TREND = "average", "per doubling"
LEAST = {"matthews": -1.0, "pearson": -1.0, "spearman": -1.0}  # that these can be; other metrics are 0 at least
SUPPORTED, NOT_SUPPORTED, UNDECIDED = "supported", "not supported", "undecided"


@dataclass(frozen=True)
class Compared:
    """A line of comparisons.csv, in points (x 100): first minus second, with its 95 % interval."""

    claim: str
    first: str
    second: str
    expect: str
    task: str  # or the average over the tasks that the claim is about, which decides
    difference: float
    low: float
    high: float
    seeds: int
    verdict: str


class StudyAnswers:
    """The answers in a study's folder: predictions/ of every cell, controls.json with the right ones."""

    def __init__(self, folder: Path, results: Results) -> None:
        self.results = results
        file = folder / "controls.json"
        self.controls: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._read_submission = cache(read_submission)

    def estimate(self, column: Column, first: str, second: str = "", seeds: Sequence[int] = ()) -> Estimate | None:
        """Returns the score of the row `first`, or with `second` their difference; over `seeds`, else over those that
        both rows have. None where answers are missing.
        """
        seeds = seeds or self.seeds(column, first, second)
        if not seeds:
            return None
        by_split = [self._of_split(column, split, first, second, seeds) for split in self.results.splits[column.name]]
        estimates = [estimate for estimate in by_split if estimate is not None]
        return mean_estimate(estimates) if estimates and len(estimates) == len(by_split) else None

    def seeds(self, column: Column, *names: str) -> list[int]:
        """Returns the seeds for which every row has answers. Controls have no seeds: for controls alone it is the
        study's first seed.
        """
        rows = [name for name in names if name and name not in (*self.results.controls, STRONGEST)]
        points = self.results.points
        seeds = [seed for seed in self.results.seeds if all((column.name, name, seed) in points for name in rows)]
        return seeds if rows else seeds[:1]

    def _of_split(self, column: Column, split: str, first: str, second: str, seeds: Sequence[int]) -> Estimate | None:
        asked = self.controls.get(column.name, {}).get("answers", {}).get(split)
        if asked is None:
            return None
        by_row = []
        for name in filter(None, (first, second)):
            by_seed = [self._answers(column, split, asked, name, seed) for seed in seeds]
            answers = [one for one in by_seed if one is not None]
            if len(answers) < len(seeds):
                return None
            by_row.append(answers)
        classes = len(self.controls[column.name]["labels"])
        groups = asked.get("groups", ())  # not in files of older versions
        return estimate(column.metric, as_answers(asked["gold"]), *by_row, classes=classes, groups=groups)

    def _answers(self, column: Column, split: str, asked: dict[str, Any], name: str, seed: int) -> Numbers | None:
        """Returns the answers [N] of a row or control to the examples of a split, in the order of `asked` (their ids,
        right answers, and the controls' answers); None where some are missing.
        """
        if name == STRONGEST and name not in asked["controls"]:
            name = WORDS  # of one text, which has no overlap with another
        if name in asked["controls"]:
            return as_answers(asked["controls"][name])
        file = self._prediction_file(column, split, name, seed)
        if file is None:
            return None
        answer_of, labels = self._read_submission(file), self.controls[column.name]["labels"]
        if not asked["ids"] or any(number not in answer_of for number in asked["ids"]):
            return None
        texts = [answer_of[number] for number in asked["ids"]]
        if column.metric in ("pearson", "spearman"):
            return np.array([float(text) for text in texts])
        if isinstance(asked["gold"][0], list):  # texts of spans, or tags with a blank between
            return objects(texts if file.suffix == ".json" else [tuple(text.split(" ")) for text in texts])
        number_of = {label: number for number, label in enumerate(labels)}
        return np.array([number_of[text] for text in texts])

    def _prediction_file(self, column: Column, split: str, name: str, seed: int) -> Path | None:
        """Returns the file of a cell's predictions. Scored pairs (STS) judge sentence vectors, whatever task these are
        trained on.
        """
        cell = self.results.cells.get((column.name, name, seed))
        if cell is None:
            return None
        names = (submission_name(task, split, ending) for task in (column.task, STS) for ending in ("tsv", "json"))
        return next((file for one in names if (file := cell / "predictions" / one).is_file()), None)


def as_answers(values: list[Any]) -> Numbers:
    """Returns the answers [N] as they were before they were written as JSON: numbers, texts, or tuples of texts."""
    if isinstance(values[0], (str, list)):
        return objects([tuple(value) if isinstance(value, list) else value for value in values])
    return np.array(values)


def intervals(answers: StudyAnswers) -> Intervals:
    """Returns the intervals of every row and control of the table, in points. An interval is cut where the metric ends,
    as one of few examples may be longer than that.
    """
    results, by_cell = answers.results, {}
    for column in results.columns:
        fitted = [name for name in results.controls if (column.name, name, None) in results.points]
        for name in (*results.variants, *fitted):
            if (score := answers.estimate(column, name)) is not None:
                low, high = score.interval()
                by_cell[column.name, name] = (100 * max(low, LEAST.get(column.metric, 0.0)), 100 * min(high, 1.0))
    return by_cell


def comparisons(answers: StudyAnswers) -> Iterator[Compared]:
    """Yields each comparison as far as the study has come; of several tasks their average or trend first."""
    results = answers.results
    for asked in results.compare:
        columns = [column for column in results.columns if not asked["tasks"] or column.name in asked["tasks"]]
        pair = asked["first"], asked["second"]
        common = sorted(set(results.seeds).intersection(*(answers.seeds(column, *pair) for column in columns)))
        # without a common seed each task has its own, and there is no average
        by_task = {column.name: answers.estimate(column, *pair, common) for column in columns}
        estimates = {name: estimate for name, estimate in by_task.items() if estimate is not None}
        if common and len(estimates) == len(columns) > 1:
            name, whole = (
                _trend(columns, estimates) if asked["trend"] else (AVERAGE, mean_estimate([*estimates.values()]))
            )
            estimates = {name: whole, **estimates}
        for task, estimate_of_task in estimates.items():
            yield _compared(asked, task, estimate_of_task)


def _compared(asked: Mapping[str, Any], task: str, found: Estimate) -> Compared:
    """Returns the line of one task, average or trend. Nothing is expected of the tasks that a trend goes through."""
    difference, low, high = (100 * value for value in (found.mean, *found.interval()))
    expect = "" if asked["trend"] and task != TREND else asked["expect"]
    return Compared(
        claim=asked["claim"],
        first=asked["first"],
        second=asked["second"],
        expect=expect,
        task=task,
        difference=difference,
        low=low,
        high=high,
        seeds=len(found.by_seed),
        verdict=verdict(expect, low, high, asked["margin"]),
    )


def _trend(columns: Sequence[Column], estimates: Mapping[str, Estimate]) -> tuple[str, Estimate]:
    """Returns the slope per doubling of training examples: the mean over the tasks that have several numbers."""
    families: dict[str, list[Column]] = {}
    for column in columns:
        families.setdefault(column.task, []).append(column)
    weights = {
        column.name: weight / len(families)
        for family in families.values()
        for column, weight in zip(family, slope_weights([c.examples or 1 for c in family]), strict=True)
    }
    return TREND, combine([estimates[name] for name in weights], [*weights.values()])


def verdict(expect: str, low: float, high: float, margin: float) -> str:
    """Returns what became of an expected difference, given its interval (points); of any other where it lies."""
    if not expect:
        return "above" if low > 0 else "below" if high < 0 else UNDECIDED
    holds = {"above": low > 0, "below": high < 0, "same": -margin < low and high < margin, "not above": high < margin}
    fails = {"above": high < 0, "below": low > 0, "same": low > 0 or high < 0, "not above": low > 0}
    return SUPPORTED if holds[expect] else NOT_SUPPORTED if fails[expect] else UNDECIDED


HEAD = ["claim", "first", "second", "tasks", "difference", "95 % interval", "seeds", "expected", "verdict"]


def as_rows(lines: Sequence[Compared]) -> list[list[str]]:
    """Returns the cells of a table under HEAD; a claim with several lines is written once."""
    rows, before = [], None
    for line in lines:
        claim = (line.claim, line.first, line.second)
        beginning = ["", "", ""] if claim == before else [*claim]
        interval = f"{line.low:+.1f} to {line.high:+.1f}"
        end = [str(line.seeds), line.expect, line.verdict]
        rows.append([*beginning, line.task, f"{line.difference:+.1f}", interval, *end])
        before = claim
    return rows


def write_comparisons(lines: Sequence[Compared], path: Path) -> None:
    write_table(path, [field.name for field in fields(Compared)], map(asdict, lines))
