"""Questions whose answer is a piece of a text, or which the text does not answer (SQuAD 1.1 and 2.0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.example import Example, Splits
from gpt1_ds.tasks.token_controls import span_rules
from gpt1_ds.tasks.token_metrics import Objects, objects, with_words

ANSWER, NO_ANSWER = "answer", "no answer"


@dataclass(frozen=True)
class Span(Task):
    kind = "span"
    fitting_metrics = ("f1", "exact_match")
    reads_tokens = True
    token_head = "span"
    submission = "json"
    controls = span_rules

    @property
    def line_fields(self) -> tuple[str, str]:
        return "question", "context"

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "pair"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns two where a training text leaves a question without an answer."""
        impossible = any(example.answers == () for example in splits["train"])
        return (ANSWER, NO_ANSWER) if impossible else (ANSWER,)

    @property
    def has_unanswerable(self) -> bool:
        return NO_ANSWER in self.labels

    def gold(self, examples: Sequence[Example]) -> Objects:
        answers = [tuple(text for text, _ in example.answers or ()) for example in examples]
        return objects([*map(with_words, answers)] if self.has_unanswerable else answers)

    def format_prediction(self, prediction: Any) -> str:
        return str(prediction)

    @property
    def _head_outputs(self) -> int:
        return 2  # where the answer begins, and where it ends
