"""Scores as distributions over six classes, and back (Tai et al. 2015, `stsb_label_encoding` of the authors' code)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.tasks.base import SCORE_CLASSES


def soft_targets(scores: NDArray[np.floating], score_range: tuple[float, float]) -> NDArray[np.float32]:
    """float32 [N, 6] from scores [N]: 2.3 is 0.7 on class 2 and 0.3 on class 3; a row's mean class is its score.

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
    """float64 [N] from probabilities [N, 6]: the mean class, sum(i * p_i), laid back over `score_range`."""
    low, high = score_range
    mean = np.asarray(probabilities, dtype=np.float64) @ np.arange(SCORE_CLASSES, dtype=np.float64)
    return low + mean / (SCORE_CLASSES - 1) * (high - low)
