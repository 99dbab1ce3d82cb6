"""A class of one text or of two; of `similarity` the order of the two says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpt1_ds.common.errors import DataError
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.controls import fitted_rules
from gpt1_ds.tasks.example import Examples, Splits
from gpt1_ds.tasks.tables import brief

FEW = 5  # labels that a line shows


@dataclass(frozen=True)
class Classification(Task):
    kind: ClassVar[Kind] = "classification"
    fitting_metrics = ("accuracy", "f1", "matthews")
    controls = fitted_rules

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "pair" if has_two_texts else "single"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns the classes' names: those that are `known`, else those of train, numbers by size and words by
        letter.
        """
        seen = {example.label for example in splits["train"]}
        found = {split: {e.label for e in rows if e.label is not None} - seen for split, rows in splits.items()}
        is_whole = all(map(float.is_integer, _in_numbers(map(str, seen))))
        way_out = "leave these rows out, or train on more" if is_whole else "task.kind=regression learns scores"
        DataError.raise_all(
            f"{path} {split}: label {', '.join(map(brief, sorted(map(str, unseen))[:FEW]))} never occurs in train; "
            f"{way_out}"
            for split, unseen in found.items()
            if unseen
        )
        names = sorted(map(str, seen))
        if len(names) < 2:
            raise DataError(f"{path} train: every label is {brief(names[0])}; a classifier needs two classes or more")
        numbers = all(name.removeprefix("-").isdecimal() for name in names)
        return known or tuple(sorted(names, key=int) if numbers else names)

    def doubts_about_kind(self, examples: Examples) -> Iterator[str]:
        return scores_as_classes(self.labels, "task.kind=regression")

    @property
    def groups_are_questions(self) -> bool:
        return "exact_match" in self.metrics


@dataclass(frozen=True)
class Similarity(Classification):
    kind = "similarity"

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "both" if has_two_texts else "single"

    def doubts_about_kind(self, examples: Examples) -> Iterator[str]:
        return scores_as_classes(self.labels, "task.kind=regression", most=2)


def scores_as_classes(labels: Sequence[str], way_out: str, most: int | None = None) -> Iterator[str]:
    """Yields a note where `labels` are numbers and rather scores: one is not whole, or they are more than `most`."""
    numbers = _in_numbers(labels)
    if not all(map(float.is_integer, numbers)) or (most and len(numbers) > most):
        shown = ", ".join(labels[:FEW]) + ", ..." * (len(numbers) > FEW)
        yield f"each of the numbers {shown} is a class of its own; {way_out} learns scores"


def _in_numbers(labels: Iterable[str]) -> list[float]:
    """Returns labels as numbers; none where one of them is no number."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
