"""Next-token prediction: every position of a window counts alike.

Shapes: B rows, T = S + 1 tokens of a window, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config import ModelConfig
from gpt1_ds.objectives.base import HostBatch, probe_tokens


@dataclass(frozen=True)
class Causal:
    """Labels: the next tokens [S, B] and their weights [S, B], which sum to 1 over a full micro-batch."""

    head: None = None

    def batch(self, tokens_BT: NDArray[np.int64], counted_B: NDArray[np.bool_]) -> HostBatch:
        """Of these windows; rows that are not `counted_B` only fill up the batch."""
        tokens_TB = tokens_BT.T
        labels_SB = np.ascontiguousarray(tokens_TB[1:])
        weight_B = counted_B.astype(np.float32) / np.float32(labels_SB.size)
        weights_SB = np.broadcast_to(weight_B, labels_SB.shape).copy()
        return HostBatch((np.ascontiguousarray(tokens_TB[:-1]),), (labels_SB, weights_SB))

    def probe(self, model: ModelConfig) -> HostBatch:
        return self.batch(probe_tokens(model).T, np.ones(1, dtype=np.bool_))
