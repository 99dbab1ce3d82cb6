"""One of several continuations of a text: a sequence for each, and a softmax over them."""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.controls import fitted_rules
from gpt1_ds.tasks.example import Splits


@dataclass(frozen=True)
class Choice(Task):
    kind = "choice"
    fitting_metrics = ("accuracy",)
    controls = fitted_rules

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "choice"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns the choices' names: those that are `known`, else their numbers."""
        return known or tuple(map(str, range(len(splits["train"][0].choices))))

    @property
    def classes(self) -> int:
        return self.outputs if self.answers else self.sequences

    @property
    def _head_outputs(self) -> int:
        return 1

    @property
    def _head_sequences(self) -> int:
        return len(self.labels)

    def text_answers(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"choice{number}" for number in range(1, len(self.labels) + 1))

    def text_fields(self) -> tuple[str, ...]:
        return ("premise", "question")
