"""A vector of each text, trained by pairs or triplets of texts, and judged by the cosine of scored pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec, SentenceLoss
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.tasks.base import ControlAnswers, Layout, Numbers, Task
from gpt1_ds.tasks.controls import cosines
from gpt1_ds.tasks.example import Examples, Splits
from gpt1_ds.tasks.kinds.classification import scores_as_classes

STS = "sts"  # what scored pairs are called in eval.json


@dataclass(frozen=True)
class Sentences(Task):
    """Its labels are those of the pairs that it is trained by (task.loss)."""

    kind = "sentences"
    fitting_metrics = ("spearman", "pearson")
    losses = get_args(SentenceLoss)

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        return "sentences"

    def doubts_about_kind(self, examples: Examples) -> Iterator[str]:
        return scores_as_classes(self.labels, "task.loss=cosine")

    @property
    def has_scores(self) -> bool:
        return self.loss == "cosine"

    def head_targets(self, scores_N: NDArray[np.float64]) -> NDArray[np.float32] | None:
        """Returns the scores from 0 to 1: a cosine is to be the score."""
        low, high = self.score_range
        return ((scores_N - low) / (high - low))[:, None].astype(np.float32) if self.has_scores else None

    @property
    def _head_sequences(self) -> int:
        return 3 if self.loss == "triplet" else 2

    def head(self, settings: TaskConfig, model: ModelConfig) -> HeadSpec:
        return HeadSpec(
            self.outputs if self.loss == "nli" else 1,
            self.sequences,
            dropout=0.0,
            lm_coefficient=0.0,
            kind=settings.pooling,
            loss=self.loss,
            margin=settings.margin,
            group=settings.group if self.loss == "ranking" else 1,
        )

    def predictions(self, scores_NK: NDArray[np.float32]) -> Numbers:
        """Returns [N], the cosine of each pair."""
        return scores_NK[:, 0].astype(np.float64)

    def format_prediction(self, prediction: Any) -> str:
        return f"{prediction:.6f}"

    @property
    def evaluation_task(self) -> Task:
        """Scored pairs, whatever trains the vectors."""
        return replace(self, name=STS, labels=(), loss="cosine")

    def controls(self, splits: Splits) -> Iterator[ControlAnswers]:
        return cosines(splits)
