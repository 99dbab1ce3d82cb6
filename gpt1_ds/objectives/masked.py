"""Masked language modelling (Devlin et al. 2019, section 3.1), with or without next-sentence prediction.

Of a row's n tokens, max(1, round(probability x n)) are predicted. Which ones, and what stands in their place, is a pure
function of (seed, data hash, number of the sequence in the run): the same on every layout, at every micro-batch size
and after a rollback.

Shapes: B rows, S positions, M positions that are predicted in a full row, G rows of the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.windows import Int64s, mix
from gpt1_ds.objectives.base import HostBatch, UInt64s, draws, probe_tokens
from gpt1_ds.objectives.documents import own_bounds

_KIND, _TOKEN = np.uint64(0xD1B54A32D192ED03), np.uint64(0x8CB92BA72F3D8DD7)  # one hash for each decision


@dataclass(frozen=True)
class MaskedText:
    """What the masks of a run depend on besides its settings: the id of <mask>; the ids that a random token may be;
    64 bits of (seed, data hash); for whole words, which ids begin one. `end` is the id after which a document begins
    that does not see the others. `special_ids` are never predicted: windows hold `<eod>`.
    """

    mask_id: int
    text_ids: Int64s
    key: int
    begins_V: NDArray[np.bool_] | None = None
    end: int | None = None
    special_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Masked:
    """Labels: which positions are predicted [M, B], their tokens and weights [M, B], those of a short row filled up
    with weight 0; with a `head` for pairs also position 0, the targets [B, 2] and weights [B]. Without a `text` only
    the probe can be made.
    """

    settings: ObjectiveConfig
    head: HeadSpec | None = None
    text: MaskedText | None = None
    predicts_all: ClassVar[bool] = False
    predicts_places: ClassVar[bool] = True

    def predicted(self, length_B: Int64s) -> Int64s:
        """Returns the number of tokens of rows of these lengths that are predicted; rows of length 0 only fill up a
        batch.
        """
        lengths, index_B = np.unique(length_B, return_inverse=True)
        return np.array([self.settings.predicted_tokens(int(length)) for length in lengths])[index_B]

    def counts(self, rows: TextRows, real: int, global_batch: int) -> tuple[int, int]:
        predicted = int(self.predicted(rows.lengths_G).sum())
        return predicted, predicted

    def batch(self, rows: TextRows) -> HostBatch:
        """Returns the batch of these rows; every predicted token of the global batch weighs the same."""
        assert self.text is not None, "the caller has a tokenizer"
        draw_BS = draws(rows.number_B, rows.tokens_BS.shape[1], self.text.key)
        special_BS = rows.special_BS | np.isin(rows.tokens_BS, self.text.special_ids)  # windows have <eod> within
        position_BM, is_predicted_BM = self._choose(replace(rows, special_BS=special_BS), draw_BS)
        tokens_BS = self._replaced(rows.tokens_BS, draw_BS, position_BM, is_predicted_BM)
        batch = self._host_batch(rows, tokens_BS, position_BM, is_predicted_BM)
        if self.text.end is None:
            return batch
        return replace(batch, bounds=own_bounds(rows.tokens_BS, self.text.end, rows.special_BS))

    def probe(self, model: ModelConfig) -> HostBatch:
        """Returns a row whose first positions are predicted, and nothing is masked: that asks for no tokenizer."""
        tokens_BS = probe_tokens(model).T[:, :-1]
        length_B, second_B = np.array([[tokens_BS.shape[1]], [(tokens_BS.shape[1] + 1) // 2]])
        row_B, special_BS = np.zeros(1, dtype=np.int64), np.zeros(tokens_BS.shape, dtype=np.bool_)
        rows = TextRows(tokens_BS, length_B, second_B, row_B, row_B, row_B, special_BS, length_B)
        position_BM = np.arange(int(self.predicted(length_B)[0]))[None]
        return self._host_batch(rows, tokens_BS, position_BM, np.ones_like(position_BM, dtype=np.bool_))

    def _host_batch(
        self, rows: TextRows, tokens_BS: Int64s, position_BM: Int64s, is_predicted_BM: NDArray[np.bool_]
    ) -> HostBatch:
        micro_batches = len(rows.lengths_G) / len(rows.row_B)  # of the global batch: its loss is the mean of theirs
        counted_BM = is_predicted_BM & (rows.row_B >= 0)[:, None]
        count_B = is_predicted_BM.sum(1)  # less than is asked for where other tokens are special: each weighs more
        scale_B = self.predicted(rows.length_B) / np.maximum(1, count_B)
        weight_B = scale_B * (micro_batches / self.predicted(rows.lengths_G).sum())
        weights_MB = np.ascontiguousarray((counted_BM * weight_B[:, None]).T.astype(np.float32))
        ids_MB = np.ascontiguousarray(np.take_along_axis(rows.tokens_BS, position_BM, 1).T)
        labels = (np.ascontiguousarray(position_BM.T), ids_MB, weights_MB, *self._pairs(rows, micro_batches))
        return HostBatch((np.ascontiguousarray(tokens_BS.T),), labels, (rows.length_B, rows.second_B))

    def _choose(self, rows: TextRows, draw_BS: UInt64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Returns (positions [B, M] in ascending order, filled up with 0; which of them are predicted)."""
        assert self.text is not None, "the caller has a tokenizer"
        count_B, S = self.predicted(rows.length_B), rows.tokens_BS.shape[1]
        order_BS = np.where(rows.special_BS, ~np.uint64(0), draw_BS)
        if self.settings.whole_words:
            assert self.text.begins_V is not None, "whole words have beginnings"
            order_BS = _word_order(rows, order_BS, self.text.begins_V, count_B)
        chosen_BM = np.argsort(order_BS, axis=1, kind="stable")[:, : int(self.predicted(np.array([S]))[0])]
        count_B = np.minimum(count_B, (~rows.special_BS).sum(1))
        is_chosen_BM = np.arange(chosen_BM.shape[1]) < count_B[:, None]
        position_BM = np.sort(np.where(is_chosen_BM, chosen_BM, S), axis=1)
        return np.where(position_BM < S, position_BM, 0), position_BM < S

    def _replaced(
        self, tokens_BS: Int64s, draw_BS: UInt64s, position_BM: Int64s, is_predicted_BM: NDArray[np.bool_]
    ) -> Int64s:
        """Returns [B, S]: the tokens that the model reads; a predicted one becomes <mask> or a random one, or stays."""
        assert self.text is not None, "the caller has a tokenizer"
        text_ids = self.text.text_ids
        draw_BM = np.take_along_axis(draw_BS, position_BM, 1)
        kind_BM = (mix(draw_BM ^ _KIND) >> np.uint64(11)) * 2.0**-53  # uniform in [0, 1)
        random_BM = text_ids[(mix(draw_BM ^ _TOKEN) % np.uint64(len(text_ids))).astype(np.int64)]
        own_BM = np.take_along_axis(tokens_BS, position_BM, 1)
        replace, random = self.settings.replace, self.settings.random
        new_BM = np.where(kind_BM < replace, self.text.mask_id, np.where(kind_BM < replace + random, random_BM, own_BM))
        replaced_BS, (row, number) = tokens_BS.copy(), np.nonzero(is_predicted_BM)
        replaced_BS[row, position_BM[row, number]] = new_BM[row, number]
        return replaced_BS

    def _pairs(self, rows: TextRows, micro_batches: float) -> tuple[NDArray[np.int64] | NDArray[np.float32], ...]:
        """Returns labels of the next-sentence head; every real row of the global batch weighs the same."""
        if self.head is None:
            return ()
        B = len(rows.row_B)
        targets_B2 = np.eye(2, dtype=np.float32)[np.maximum(rows.follows_B, 0)]
        weights_B = ((rows.row_B >= 0) * (micro_batches / np.count_nonzero(rows.lengths_G))).astype(np.float32)
        return np.zeros(B, dtype=np.int64), targets_B2, weights_B


def _word_order(rows: TextRows, order_BS: UInt64s, begins_V: NDArray[np.bool_], count_B: Int64s) -> UInt64s:
    """Returns [B, S]: the order with the pieces of each word together; words have the order of their first pieces. A
    word that is longer than what is left to be predicted comes after all that are not; if no other is left, it is cut.
    """
    word_order_BS = order_BS.copy()
    for row, (tokens_S, special_S) in enumerate(zip(rows.tokens_BS, rows.special_BS, strict=True)):
        positions = np.flatnonzero(~special_S)
        if not len(positions):
            continue
        follows_special = np.diff(positions, prepend=positions[0] - 2) > 1
        begins = begins_V[tokens_S[positions]] | follows_special
        words, left = np.split(positions, np.flatnonzero(begins)[1:]), int(count_B[row])
        fitting, too_long = [], []
        for number in np.argsort([order_BS[row, word[0]] for word in words], kind="stable"):
            word = words[number]
            if len(word) <= left:
                fitting.append(word)
                left -= len(word)
            else:
                too_long.append(word)
        word_order_BS[row, np.concatenate([*fitting, *too_long])] = np.arange(len(positions), dtype=np.uint64)
    return word_order_BS
