"""A text to write: a translation, a summary, an answer in words (Raffel et al. 2020, section 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpt1_ds.architecture.head import TEXT, HeadSpec
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.example import Example, Splits
from gpt1_ds.tasks.token_controls import written_rules
from gpt1_ds.tasks.token_metrics import Objects, objects


@dataclass(frozen=True)
class Generation(Task):
    prefix: str = ""  # stands before every source

    kind = "generation"
    fitting_metrics = ("bleu", "rouge1", "rouge2", "rougeLsum", "exact_match", "f1")
    writes_text = True
    submission = "json"
    controls = written_rules

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "pair" if has_two_texts else "single"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns none: any text may be written."""
        return ()

    @property
    def line_fields(self) -> tuple[str, str]:
        return ("question", "context") if self.layout == "pair" else ("source", "")

    @property
    def group_metrics(self) -> tuple[str, ...]:
        """Returns all of them: of a mixture a group is a task."""
        return self.metrics

    def text_fields(self) -> tuple[str, ...]:
        return self.line_fields if self.layout == "pair" else ()

    def gold(self, examples: Sequence[Example]) -> Objects:
        return objects([example.targets for example in examples])

    def with_settings(self, settings: TaskConfig) -> Generation:
        return replace(self, prefix=settings.prefix)

    def source(self, example: Example) -> str:
        """Returns the prefix and the text, or two texts after their names."""
        named = [f"{name}: {text}" for name, text in zip(self.text_fields(), example.texts, strict=False)]
        return self.prefix + (" ".join(named) or example.texts[0])

    def text_answers(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def format_prediction(self, prediction: Any) -> str:
        return str(prediction)

    def head(self, settings: TaskConfig, model: ModelConfig) -> HeadSpec:
        return TEXT
