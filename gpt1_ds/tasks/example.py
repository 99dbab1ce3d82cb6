"""One example of a task, as every reader of files makes it and everything else in this package takes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One row of a file. `label`, `score` and `answers` are None where the right answer is not known. Texts have no
    blanks at their ends, except the context of a span, which stays as it is written.
    """

    id: str
    texts: tuple[str, ...]  # one text; two; a triplet; document and question; question and context; or words to tag
    choices: tuple[str, ...] = ()
    label: str | None = None  # one of Task.labels
    score: float | None = None  # of a regression, within Task.score_range
    group: str = ""  # metrics are also reported per group: RACE's middle and high
    answers: tuple[tuple[str, int], ...] | None = None  # of a span: (text, its first character); () if it has none
    tags: tuple[str, ...] = ()  # of tagging: one for each word
    targets: tuple[str, ...] = ()  # of generation: the texts that are right; a model learns to write the first
    source: str = ""  # examples of one source are held out together; empty: the first text is the source

    @property
    def is_labelled(self) -> bool:
        """Returns whether the right answer is known."""
        known = (self.label, self.score, self.answers, self.tags or None, self.targets or None)
        return any(value is not None for value in known)


Examples = tuple[Example, ...]
Splits = Mapping[str, Sequence[Example]]


def hash_examples(examples: Sequence[Example]) -> str:
    """Returns the hex sha256 of all fields of the examples."""
    return hashlib.sha256(repr(tuple(examples)).encode()).hexdigest()
