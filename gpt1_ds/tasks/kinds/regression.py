"""A score of two texts, or of one: as a distribution over six classes (GPT-1), as a number (BERT), or in text (T5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.tasks.base import NO_LABEL, SCORE_CLASSES, Numbers, Task, probabilities
from gpt1_ds.tasks.controls import fitted_rules
from gpt1_ds.tasks.example import Example, Examples, Splits

STEPS = 25  # in text a score is a multiple of a 25th of its range, 0.2 of 0 to 5


@dataclass(frozen=True)
class Regression(Task):
    kind = "regression"
    fitting_metrics = ("pearson", "spearman")
    reads_scores = True
    controls = fitted_rules

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        return ()

    def doubts_about_kind(self, examples: Examples) -> Iterator[str]:
        scores = sorted({example.score for example in examples if example.score is not None})
        if len(scores) == 2 and all(map(float.is_integer, scores)):
            yield f"every score is {scores[0]:g} or {scores[1]:g}; task.kind=classification learns classes"

    def gold(self, examples: Sequence[Example]) -> Numbers:
        return np.array([example.score for example in examples], dtype=np.float64)

    def head_targets(self, scores_N: NDArray[np.float64]) -> NDArray[np.float32]:
        if self.outputs == 1:
            return scores_N[:, None].astype(np.float32)
        return soft_targets(scores_N, self.score_range)

    @property
    def _head_outputs(self) -> int:
        return SCORE_CLASSES if self.regression == "classes" else 1

    def predictions(self, scores_NK: NDArray[np.float32]) -> Numbers:
        if self.answers:
            return self.score_of(np.argmax(scores_NK, axis=1))
        if self.outputs == 1:
            return scores_NK[:, 0].astype(np.float64)
        return read_out(probabilities(scores_NK), self.score_range)

    def format_prediction(self, prediction: Any) -> str:
        """Returns a score with 3 places; one outside of the task's range is brought to its border."""
        low, high = self.score_range
        return f"{min(max(prediction, low), high):.3f}"

    def text_answers(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{step / 5:.1f}" for step in range(STEPS + 1))

    def answer_number(self, example: Example) -> int:
        """Returns the number of the answer that is nearest to a score. A tie goes to the even one, in float32, as in
        the authors' code.
        """
        if example.score is None:
            return NO_LABEL
        low, high = self.score_range
        return int(np.round(np.float32((example.score - low) / (high - low) * 5) * np.float32(5)))

    def score_of(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the scores that answers in text stand for."""
        low, high = self.score_range
        return low + numbers * (high - low) / STEPS


def soft_targets(scores: NDArray[np.floating], score_range: tuple[float, float]) -> NDArray[np.float32]:
    """Returns the scores as distributions over six classes (Tai et al. 2015, `stsb_label_encoding` of the authors'
    code).

    float32 [N, 6] from scores [N]: 2.3 is 0.7 on class 2 and 0.3 on class 3; a row's mean class is its score.
    `score_range` is laid over 0 to 5 first. Scores lie within it.
    """
    low, high = score_range
    place = (np.asarray(scores, dtype=np.float64) - low) / (high - low) * (SCORE_CLASSES - 1)
    lower = np.minimum(np.floor(place).astype(np.int64), SCORE_CLASSES - 2)
    targets = np.zeros((len(place), SCORE_CLASSES), dtype=np.float64)
    rows = np.arange(len(place))
    targets[rows, lower] = 1 - (place - lower)
    targets[rows, lower + 1] = place - lower
    return targets.astype(np.float32)


def read_out(probabilities: NDArray[np.floating], score_range: tuple[float, float]) -> NDArray[np.float64]:
    """Returns float64 [N] from probabilities [N, 6]: the mean class, sum(i * p_i), laid back over `score_range`."""
    low, high = score_range
    mean = np.asarray(probabilities, dtype=np.float64) @ np.arange(SCORE_CLASSES, dtype=np.float64)
    return low + mean / (SCORE_CLASSES - 1) * (high - low)
