"""A class for each kind of task, by the name that task.kind has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.kinds.choice import Choice
from gpt1_ds.tasks.kinds.classification import Classification, Similarity
from gpt1_ds.tasks.kinds.generation import Generation
from gpt1_ds.tasks.kinds.regression import Regression
from gpt1_ds.tasks.kinds.sentences import Sentences
from gpt1_ds.tasks.kinds.span import Span
from gpt1_ds.tasks.kinds.tagging import Tagging

__all__ = [
    "KINDS",
    "Choice",
    "Classification",
    "Generation",
    "Regression",
    "Sentences",
    "Similarity",
    "Span",
    "Tagging",
    "from_values",
]

KINDS: Mapping[str, type[Task]] = {
    one.kind: one for one in (Classification, Similarity, Regression, Choice, Sentences, Span, Tagging, Generation)
}


def from_values(values: Mapping[str, Any]) -> Task:
    """Returns the task that `Task.values`, and then perhaps JSON, gave `values` of. Raises TypeError for others."""
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise TypeError("no such kind of task")
    return KINDS[kind].of({key: value for key, value in values.items() if key != "kind"})
