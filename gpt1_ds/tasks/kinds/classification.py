"""A class of one text or of two; of `similarity` the order of the two says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpt1_ds.common.errors import DataError
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import Layout, Splits, Task
from gpt1_ds.tasks.controls import fitted_rules
from gpt1_ds.tasks.formats import brief


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
        """The classes' names: those that are `known`, else those of train, numbers by size and words by letter."""
        seen = {example.label for example in splits["train"]}
        found = {split: {e.label for e in rows if e.label is not None} - seen for split, rows in splits.items()}
        DataError.raise_all(
            f"{path} {split}: label {', '.join(map(brief, sorted(map(str, unseen))[:5]))} never occurs in train; "
            "leave these rows out, or train on more"
            for split, unseen in found.items()
            if unseen
        )
        names = sorted(map(str, seen))
        if len(names) < 2:
            raise DataError(f"{path} train: every label is {brief(names[0])}; a classifier needs two classes or more")
        numbers = all(name.removeprefix("-").isdecimal() for name in names)
        return known or tuple(sorted(names, key=int) if numbers else names)

    @property
    def groups_are_questions(self) -> bool:
        return "exact_match" in self.metrics


@dataclass(frozen=True)
class Similarity(Classification):
    kind = "similarity"

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "both" if has_two_texts else "single"
