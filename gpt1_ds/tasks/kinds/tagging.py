"""A tag of each word: parts of speech, or entities by B-, I- and O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.example import Example, Splits
from gpt1_ds.tasks.tables import brief
from gpt1_ds.tasks.token_controls import tag_rules
from gpt1_ds.tasks.token_metrics import Objects, entity_problem, objects


@dataclass(frozen=True)
class Tagging(Task):
    kind = "tagging"
    fitting_metrics = ("entity_f1", "accuracy")
    reads_tokens = True
    token_head = "tags"
    controls = tag_rules

    @property
    def line_fields(self) -> tuple[str, str]:
        return "tokens", ""

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "single"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns the tags: those that are `known`, else those of train, by letter."""
        names = known or tuple(sorted({tag for example in splits["train"] for tag in example.tags}))
        unseen = {
            split: sorted({tag for example in rows for tag in example.tags} - set(names))
            for split, rows in splits.items()
        }
        DataError.raise_all(
            f"{path} {split}: tag {', '.join(map(brief, found[:5]))} is none of those of train; leave these sentences "
            "out, or train on more"
            for split, found in unseen.items()
            if found
        )
        if len(names) < 2:
            raise DataError(f"{path} train: every tag is {brief(names[0])}; tagging needs two tags or more")
        return names

    @classmethod
    def fit_metrics(cls, metrics: tuple[str, ...], labels: tuple[str, ...], path: str) -> tuple[str, ...]:
        """Returns tags of which no entities can be counted have an accuracy alone."""
        problem = entity_problem(labels)
        if problem and metrics[0] == "entity_f1":
            raise DataError(f"{path}: {problem}; set task.metric=accuracy")
        return tuple(metric for metric in metrics if not problem or metric != "entity_f1")

    def gold(self, examples: Sequence[Example]) -> Objects:
        return objects([example.tags for example in examples])

    def format_prediction(self, prediction: Any) -> str:
        return " ".join(prediction)
