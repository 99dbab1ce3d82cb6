"""Next-token prediction of windows, where every position counts alike, and of rows of sentences, where padding counts
nothing; and prefix language modelling, where a text is cut at a random place and its rest is predicted (Raffel et al.
2020).

Shapes: B rows, T tokens of a window, S = T - 1 positions (L of a prefix model); G rows of the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.loader import Rows
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.windows import Int64s
from gpt1_ds.objectives.base import HostBatch, draws, probe_tokens
from gpt1_ds.objectives.documents import numbers, own_bounds
from gpt1_ds.objectives.source_target import Texts, token_weights


@dataclass(frozen=True)
class Causal:
    """Labels: the next tokens [S, B] and their weights [S, B], which sum to 1 over a full micro-batch. `end` is the id
    after which a document begins that does not see those before it.
    """

    end: int | None = None
    head: None = None
    predicts_all: ClassVar[bool] = True
    predicts_places: ClassVar[bool] = False

    def batch(self, rows: Rows) -> HostBatch:
        """Returns the batch of these windows; rows numbered -1 only fill it up."""
        tokens_TB = rows.tokens_BT.T
        labels_SB = np.ascontiguousarray(tokens_TB[1:])
        weight_B = (rows.row_B >= 0).astype(np.float32) / np.float32(labels_SB.size)
        weights_SB = np.broadcast_to(weight_B, labels_SB.shape).copy()
        batch = HostBatch((np.ascontiguousarray(tokens_TB[:-1]),), (labels_SB, weights_SB))
        return batch if self.end is None else replace(batch, bounds=own_bounds(rows.tokens_BT[:, :-1], self.end))

    def counts(self, rows: Rows, real: int, global_batch: int) -> tuple[int, int]:
        context = rows.tokens_BT.shape[1] - 1
        return global_batch * context, real * context

    def probe(self, model: ModelConfig) -> HostBatch:
        """It is one document, whatever its tokens are."""
        return Causal().batch(Rows(probe_tokens(model).T, np.zeros(1, dtype=np.int64)))


@dataclass(frozen=True)
class CausalRows:
    """Labels: the next tokens [S, B] and their weights [S, B]. Of a row every token but the first, which is always the
    same symbol, is predicted, and weighs the same in the whole global batch. What stands in a row after its last token
    is padding, which no token before it sees. `end` as in Causal.
    """

    end: int | None = None
    head: None = None
    predicts_all: ClassVar[bool] = False
    predicts_places: ClassVar[bool] = False

    def batch(self, rows: TextRows) -> HostBatch:
        """Returns the batch of these rows; rows numbered -1 only fill it up."""
        tokens_SB = np.ascontiguousarray(rows.tokens_BS.T)
        next_SB = np.concatenate([tokens_SB[1:], tokens_SB[-1:]])  # the last position predicts nothing
        parts, (predicted, _) = len(rows.lengths_G) / len(rows.row_B), self.counts(rows, 0, 0)
        counted_SB = np.arange(1, len(tokens_SB) + 1)[:, None] < np.where(rows.row_B >= 0, rows.length_B, 0)
        batch = HostBatch((tokens_SB,), (next_SB, (counted_SB * (parts / predicted)).astype(np.float32)))
        return (
            batch if self.end is None else replace(batch, bounds=own_bounds(rows.tokens_BS, self.end, rows.special_BS))
        )

    def counts(self, rows: TextRows, real: int, global_batch: int) -> tuple[int, int]:
        predicted = int(np.maximum(rows.lengths_G - 1, 0).sum())  # 0 of what only fills the batch up
        return predicted, predicted

    def probe(self, model: ModelConfig) -> HostBatch:
        return Causal().probe(model)


@dataclass(frozen=True)
class Prefix:
    """Labels: the next tokens [S, B], or of two stacks the target [T, B], and their weights. `key` is 64 bits of
    (seed, data hash), `end` as in Causal.
    """

    settings: ObjectiveConfig
    model: ModelConfig
    pad: int = 0
    key: int = 0
    end: int | None = None
    head: None = None
    predicts_all: ClassVar[bool] = False
    predicts_places: ClassVar[bool] = False

    def cuts(self, number_B: Int64s) -> Int64s:
        """Returns the number of tokens of each sequence's prefix, uniform from 1 to L: a pure function of its
        number.
        """
        length = self.settings.lengths(self.model).text
        return 1 + (draws(number_B, 1, self.key)[:, 0] % np.uint64(length)).astype(np.int64)

    def counts(self, rows: Rows, real: int, global_batch: int) -> tuple[int, int]:
        predicted = int((rows.tokens_BT.shape[1] - self.cuts(rows.number_G[rows.number_G >= 0])).sum())
        return predicted, predicted

    def batch(self, rows: Rows) -> HostBatch:
        T = rows.tokens_BT.shape[1]
        cut_G = self.cuts(rows.number_G)
        cut_B = np.where(rows.row_B >= 0, cut_G[rows.row_B], 1)
        weight_B = token_weights(rows.number_G, rows.row_B, T - cut_G)
        number_BT = None if self.end is None else numbers(rows.tokens_BT, self.end)
        return self._host_batch(rows.tokens_BT, cut_B, weight_B, number_BT)

    def probe(self, model: ModelConfig) -> HostBatch:
        tokens_BT = probe_tokens(model).T
        T = tokens_BT.shape[1]
        return self._host_batch(tokens_BT, np.array([T // 2]), np.array([1 / (T - T // 2)]), positions=T - 1)

    def _host_batch(
        self,
        tokens_BT: Int64s,
        cut_B: Int64s,
        weight_B: np.ndarray,
        number_BT: Int64s | None = None,
        positions: int | None = None,
    ) -> HostBatch:
        T = tokens_BT.shape[1]
        after_BT = np.minimum(np.arange(T) + cut_B[:, None], T - 1)
        documents = None
        if number_BT is not None:
            documents = number_BT[:, :-1], np.take_along_axis(number_BT, after_BT, 1)
        texts = Texts(tokens_BT[:, :-1], cut_B, np.take_along_axis(tokens_BT, after_BT, 1), T - cut_B, documents)
        stacks = self.settings.lengths(self.model).stacks if positions is None else (positions,) * self.model.stacks
        return texts.host_batch(stacks, self.pad, weight_B)
