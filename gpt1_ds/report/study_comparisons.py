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
        self.known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._predictions = cache(read_submission)

    def estimate(self, column: Column, first: str, second: str = "", seeds: Sequence[int] = ()) -> Estimate | None:
        """Returns a row's score, or its difference to another one; over `seeds`, else those that both have. None for a
        row without answers.
        """
        seeds = seeds or self.seeds(column, first, second)
        if not seeds:
            return None
        parts = [self._of_split(column, split, first, second, seeds) for split in self.results.splits[column.name]]
        there = [part for part in parts if part is not None]
        return mean_estimate(there) if there and len(there) == len(parts) else None

    def seeds(self, column: Column, *names: str) -> list[int]:
        """Returns the seeds for which every row has answers; for controls alone, which have no seeds, the study's
        first.
        """
        rows = [name for name in names if name and name not in (*self.results.controls, STRONGEST)]
        keys = self.results.points
        found = [seed for seed in self.results.seeds if all((column.name, name, seed) in keys for name in rows)]
        return found if rows else found[:1]

    def _of_split(self, column: Column, split: str, first: str, second: str, seeds: Sequence[int]) -> Estimate | None:
        known = self.known.get(column.name, {}).get("answers", {}).get(split)
        if known is None:
            return None
        found = []
        for name in filter(None, (first, second)):
            answers = [self._answers(column, split, known, name, seed) for seed in seeds]
            if any(one is None for one in answers):
                return None
            found.append([one for one in answers if one is not None])
        classes = len(self.known[column.name]["labels"])
        groups = known.get("groups", ())  # not in files of older versions
        return estimate(column.metric, as_answers(known["gold"]), *found, classes=classes, groups=groups)

    def _answers(self, column: Column, split: str, known: dict[str, Any], name: str, seed: int) -> Numbers | None:
        """[N], in the order of the right answers. One text has no overlap: its words are all that a rule reads."""
        if name == STRONGEST and name not in known["controls"]:
            name = WORDS
        if name in known["controls"]:
            return as_answers(known["controls"][name])
        place = self.results.cells.get((column.name, name, seed))
        # Sentence vectors are judged by scored pairs, whatever task they are trained on
        named = (submission_name(task, split, ending) for task in (column.task, STS) for ending in ("tsv", "json"))
        file = next((file for one in named if place and (file := place / "predictions" / one).is_file()), None)
        if file is None:
            return None
        told, labels = self._predictions(file), self.known[column.name]["labels"]
        if not known["ids"] or any(one not in told for one in known["ids"]):
            return None
        if column.metric in ("pearson", "spearman"):
            return np.array([float(told[one]) for one in known["ids"]])
        if isinstance(known["gold"][0], list):  # texts of spans, or tags with a blank between
            words = [told[one] for one in known["ids"]]
            return objects(words if file.suffix == ".json" else [tuple(one.split(" ")) for one in words])
        number_of = {label: number for number, label in enumerate(labels)}
        return np.array([number_of[told[one]] for one in known["ids"]])


def as_answers(values: list[Any]) -> Numbers:
    """[N], as they were before they were written as JSON: numbers, texts, or tuples of texts."""
    if isinstance(values[0], (str, list)):
        return objects([tuple(one) if isinstance(one, list) else one for one in values])
    return np.array(values)


def intervals(answers: StudyAnswers) -> Intervals:
    """Returns the intervals of every row and control of the table, in points, cut where the metric ends: few examples
    have one that is longer than that.
    """
    results, found = answers.results, {}
    for column in results.columns:
        fitted = [name for name in results.controls if (column.name, name, None) in results.points]
        for name in (*results.variants, *fitted):
            if (one := answers.estimate(column, name)) is not None:
                low, high = one.interval()
                found[column.name, name] = (100 * max(low, LEAST.get(column.metric, 0.0)), 100 * min(high, 1.0))
    return found


def comparisons(answers: StudyAnswers) -> Iterator[Compared]:
    """Each comparison as far as the study has come: of several tasks their average or trend first."""
    results = answers.results
    for one in results.compare:
        columns = [column for column in results.columns if not one["tasks"] or column.name in one["tasks"]]
        common = set(results.seeds).intersection(*(answers.seeds(c, one["first"], one["second"]) for c in columns))
        seeds = sorted(common)  # of none in common each task has its own, and there is no average
        found = {c.name: answers.estimate(c, one["first"], one["second"], seeds) for c in columns}
        there = {name: value for name, value in found.items() if value is not None}
        if seeds and len(there) == len(columns) > 1:
            whole = _trend(columns, there) if one["trend"] else (AVERAGE, mean_estimate([*there.values()]))
            there = dict([whole]) | there
        for task, value in there.items():
            difference, low, high = (100 * x for x in (value.mean, *value.interval()))
            said = {key: one[key] for key in ("claim", "first", "second")}
            is_part = one["trend"] and task != TREND  # of a slope, of which nothing is expected
            expect = "" if is_part else one["expect"]
            told = verdict(expect, low, high, one["margin"])
            yield Compared(**said, expect=expect, task=task, difference=difference, low=low, high=high,
                           seeds=len(value.by_seed), verdict=told)  # fmt: skip


def _trend(columns: Sequence[Column], found: Mapping[str, Estimate]) -> tuple[str, Estimate]:
    """The slope per doubling of training examples, the mean over the tasks that have several numbers of them."""
    families: dict[str, list[Column]] = {}
    for column in columns:
        families.setdefault(column.task, []).append(column)
    weights = {
        column.name: weight / len(families)
        for family in families.values()
        for column, weight in zip(family, slope_weights([c.examples or 1 for c in family]), strict=True)
    }
    return TREND, combine([found[name] for name in weights], [*weights.values()])


def verdict(expect: str, low: float, high: float, margin: float) -> str:
    """Returns what became of an expected difference, given its interval (points); of any other where it lies."""
    if not expect:
        return "above" if low > 0 else "below" if high < 0 else UNDECIDED
    holds = {"above": low > 0, "below": high < 0, "same": -margin < low and high < margin, "not above": high < margin}
    fails = {"above": high < 0, "below": low > 0, "same": low > 0 or high < 0, "not above": low > 0}
    return SUPPORTED if holds[expect] else NOT_SUPPORTED if fails[expect] else UNDECIDED


HEAD = ["claim", "first", "second", "tasks", "difference", "95 % interval", "seeds", "expected", "verdict"]


def as_rows(found: Sequence[Compared]) -> list[list[str]]:
    """Under HEAD; a claim is told once."""
    rows, before = [], None
    for one in found:
        same = (one.claim, one.first, one.second) == before
        before = (one.claim, one.first, one.second)
        told = ["", "", ""] if same else [*before]
        ends = f"{one.low:+.1f} to {one.high:+.1f}"
        rows.append([*told, one.task, f"{one.difference:+.1f}", ends, str(one.seeds), one.expect, one.verdict])
    return rows


def write_comparisons(found: Sequence[Compared], path: Path) -> None:
    write_table(path, [field.name for field in fields(Compared)], map(asdict, found))
