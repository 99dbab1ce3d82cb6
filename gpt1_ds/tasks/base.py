"""The two things that every file here speaks of: a task, and one example of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gpt1_ds.architecture.head import SentenceLoss

Kind = Literal["classification", "similarity", "regression", "choice", "sentences"]
Layout = Literal["single", "pair", "both", "choice", "sentences"]
Symbols = Literal["extract", "separator", "two_separators"]  # the symbols around texts (layouts.py)
Regression = Literal["classes", "value"]
SCORE_CLASSES = 6  # a score is a distribution over the whole numbers 0 to 5 (Tai et al. 2015)


@dataclass(frozen=True)
class Example:
    """One row of a file, its texts stripped of surrounding blanks. `label` and `score` are None where there is none."""

    id: str
    texts: tuple[str, ...]  # one text; two; a triplet; or the document of a choice, and its question if there is one
    choices: tuple[str, ...] = ()
    label: str | None = None  # one of Task.labels
    score: float | None = None  # of a regression, within Task.score_range
    group: str = ""  # metrics are also reported per group: RACE's middle and high
    source: str = ""  # examples with an equal source belong together when a part is held out; empty: the first text


@dataclass(frozen=True)
class Task:
    """What the head, the loss and the metrics need to know; plain values, so that a checkpoint can keep it."""

    name: str
    kind: Kind
    layout: Layout  # single x; pair a b; both a b and b a; choice one sequence per choice; sentences one per text
    labels: tuple[str, ...]  # names by class number, or of the choices; none for a regression
    metrics: tuple[str, ...]  # the first one chooses the best epoch
    score_range: tuple[float, float] = (0.0, float(SCORE_CLASSES - 1))
    symbols: Symbols = "extract"
    regression: Regression = "classes"  # what the head says of a score: six classes, or the score itself
    loss: SentenceLoss | None = None  # of sentence vectors; cosine knows a score of each pair, the others its label
    answers: tuple[str, ...] = ()  # of a task in text: what may be written, of each class or score; else none
    fields: tuple[str, ...] = ()  # of a task in text: names of an example's texts

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Task:
        """The task that `dataclasses.asdict`, and then perhaps JSON, made `values` of. Raises TypeError for others."""
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        task = cls(**plain)
        texts = (task.name, *task.labels, *task.metrics, *task.answers, *task.fields)
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise TypeError("names are lines of text")
        choices = ((task.kind, Kind), (task.layout, Layout), (task.symbols, Symbols), (task.regression, Regression))
        if not all(value in get_args(known) for value, known in choices):
            raise TypeError("no such kind of task")
        low, high = map(float, task.score_range)
        if (task.loss in get_args(SentenceLoss)) != (task.kind == "sentences"):
            raise TypeError("no such loss")
        if not (low < high and task.metrics and (task.labels or task.has_scores)):
            raise TypeError("not a task")
        return task

    @property
    def has_scores(self) -> bool:
        """Whether an example has a score, and no label."""
        return self.kind == "regression" or self.loss == "cosine"

    @property
    def outputs(self) -> int:
        """Columns of the head: classes; of a regression 6, or its value; 1 for a choice, whose softmax is over its
        sequences. In text: answers.
        """
        if self.answers:
            return len(self.answers)
        if self.kind == "choice":
            return 1
        if self.kind == "regression":
            return SCORE_CLASSES if self.regression == "classes" else 1
        return max(1, len(self.labels))

    @property
    def sequences(self) -> int:
        """C, the sequences of one example; in text its source alone."""
        if self.answers:
            return 1
        if self.layout == "sentences":
            return 3 if self.loss == "triplet" else 2
        return {"single": 1, "pair": 1, "both": 2, "choice": len(self.labels)}[self.layout]
