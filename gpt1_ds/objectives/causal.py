"""Next-token prediction: every position of a window counts alike.

Shapes: B rows, T = S + 1 tokens of a window, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpt1_ds.config import ModelConfig
from gpt1_ds.data.loader import Rows
from gpt1_ds.objectives.base import HostBatch, probe_tokens


@dataclass(frozen=True)
class Causal:
    """Labels: the next tokens [S, B] and their weights [S, B], which sum to 1 over a full micro-batch."""

    head: None = None
    predicts_all: ClassVar[bool] = True
    predicts_places: ClassVar[bool] = False

    def batch(self, rows: Rows) -> HostBatch:
        """Returns the batch of these windows; rows numbered -1 only fill it up."""
        tokens_TB = rows.tokens_BT.T
        labels_SB = np.ascontiguousarray(tokens_TB[1:])
        weight_B = (rows.row_B >= 0).astype(np.float32) / np.float32(labels_SB.size)
        weights_SB = np.broadcast_to(weight_B, labels_SB.shape).copy()
        return HostBatch((np.ascontiguousarray(tokens_TB[:-1]),), (labels_SB, weights_SB))

    def counts(self, rows: Rows, real: int, global_batch: int) -> tuple[int, int]:
        context = rows.tokens_BT.shape[1] - 1
        return global_batch * context, real * context

    def probe(self, model: ModelConfig) -> HostBatch:
        return self.batch(Rows(probe_tokens(model).T, np.zeros(1, dtype=np.int64)))
