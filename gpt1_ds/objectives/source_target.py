"""A source and the target that follows from it, as the stacks of a model read them; and fine-tuning in text: the source
names a task and its texts, the target is the answer in words (Raffel et al. 2020), one of a few or any text.

An encoder reads the source and a decoder the target, shifted right; a single stack reads one after the other.

Shapes: B rows, S positions of the longest source (or of the only stack), T of the target or the longest answer, K
answers, G rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import TEXT, HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import Int64s
from gpt1_ds.objectives.base import HostBatch, probe_tokens
from gpt1_ds.objectives.documents import bounds

OF_PADDING = 1 << 30  # its number of a document, above all others


@dataclass(frozen=True)
class Texts:
    """Sources and targets, each padded at its end to the longest that may come."""

    source_BS: Int64s
    source_B: Int64s  # lengths, at least 1
    target_BT: Int64s
    target_B: Int64s
    documents: tuple[Int64s, Int64s] | None = None  # of source and target tokens that see their own alone: its number

    def host_batch(
        self, stacks: tuple[int, ...], pad: int, weight_B: NDArray[np.floating], all_tokens: bool = False
    ) -> HostBatch:
        """`stacks` are the positions of each. `weight_B` is that of each predicted token of a row; a single stack
        predicts its target, or `all_tokens`.
        """
        if len(stacks) == 1:
            return self._joined(stacks[0], pad, weight_B, all_tokens)
        S, T = stacks
        target_BT = _resized(self.target_BT, self.target_B, T, pad)
        shifted_BT = np.concatenate([np.full((len(target_BT), 1), pad), target_BT[:, :-1]], 1)
        weights_BT = (np.arange(T) < self.target_B[:, None]) * weight_B[:, None]
        bounds_BX = None
        if self.documents is not None:
            number_BS = _resized(self.documents[0], self.source_B, S, OF_PADDING)
            number_BT = _resized(self.documents[1], self.target_B, T, OF_PADDING)
            shifted_BT[:, 1:][number_BT[:, 1:] != number_BT[:, :-1]] = pad  # a document's target begins as a row's does
            own = bounds(number_BS, number_BS), bounds(number_BT, number_BT)
            bounds_BX = np.concatenate([*own, bounds(number_BT, number_BS)], 1)
        inputs = _columns(_resized(self.source_BS, self.source_B, S, pad)), _columns(shifted_BT)
        labels = _columns(target_BT), _columns(weights_BT.astype(np.float32))
        return HostBatch(inputs, labels, (self.source_B, self.source_B), bounds_BX)

    def _joined(self, positions: int, pad: int, weight_B: NDArray[np.floating], all_tokens: bool) -> HostBatch:
        """Returns the rows in which the target follows the source; each position predicts the next token."""
        tokens_BS = self._one_after_the_other(self.source_BS, self.target_BT, positions + 1, pad)
        place_S = np.arange(1, positions + 1)  # of the labels in the row
        counted_BS = place_S < (self.source_B + self.target_B)[:, None]
        if not all_tokens:
            counted_BS &= place_S >= self.source_B[:, None]
        weights_BS = (counted_BS * weight_B[:, None]).astype(np.float32)
        bounds_BX = None
        if self.documents is not None:
            number_BS = self._one_after_the_other(*self.documents, positions + 1, OF_PADDING)[:, :-1]
            bounds_BX = bounds(number_BS, number_BS)
        labels = _columns(tokens_BS[:, 1:]), _columns(weights_BS)
        return HostBatch((_columns(tokens_BS[:, :-1]),), labels, (self.source_B, self.source_B), bounds_BX)

    def _one_after_the_other(self, source_BS: Int64s, target_BT: Int64s, positions: int, fill: int) -> Int64s:
        """Returns [B, positions]: what belongs to each token of the source, then of the target, then `fill`."""
        B, at = len(self.source_B), np.arange(target_BT.shape[1])
        found_BS = np.full((B, positions + len(at)), fill)
        found_BS[:, : source_BS.shape[1]] = source_BS
        np.put_along_axis(found_BS, self.source_B[:, None] + at, target_BT, 1)
        return _resized(found_BS, self.source_B + self.target_B, positions, fill)


def token_weights(number_G: Int64s, row_B: Int64s, counts_G: Int64s) -> NDArray[np.float64]:
    """Returns [B]: every predicted token of the global batch weighs the same; the loss is the mean over its
    micro-batches.
    """
    parts, total = len(number_G) / len(row_B), counts_G[number_G >= 0].sum()
    return (row_B >= 0) * (parts / total)  # type: ignore[no-any-return]


def halves(model: ModelConfig) -> HostBatch:
    """Returns the probe of an objective: the second half of a row follows from the first."""
    tokens_BT = probe_tokens(model).T[:, :-1]
    T = tokens_BT.shape[1]
    half = T // 2
    texts = Texts(tokens_BT[:, :half], np.array([half]), tokens_BT[:, half:], np.array([T - half]))
    return texts.host_batch((T,) * model.stacks, 0, np.full(1, 1 / (T - half)))


def _resized(tokens_BS: Int64s, length_B: Int64s, positions: int, pad: int) -> Int64s:
    """Returns [B, positions], padded after each row's length."""
    B, S = tokens_BS.shape
    assert length_B.max() <= positions, f"{length_B.max()} tokens do not fit into {positions} positions"
    found_BS = np.full((B, positions), pad)
    used = min(S, positions)
    found_BS[:, :used] = np.where(np.arange(used) < length_B[:, None], tokens_BS[:, :used], pad)
    return found_BS


def _columns(values_BS: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values_BS.T)


def _rounded(needed: tuple[int, ...], multiple: int, limit: int) -> tuple[int, ...]:
    """Returns the positions of each stack that hold as many as are `needed`."""
    return tuple(min(-(-one // multiple) * multiple, limit) for one in needed)


@dataclass(frozen=True)
class SourceToTarget:
    """An objective whose targets are any texts. Labels: the next tokens [S, B], or of two stacks the target [T, B], and
    their weights. Positions are a multiple of `multiple` and at most `limit`.
    """

    stacks: int
    pad: int
    limit: int
    multiple: int
    head: HeadSpec = TEXT

    def positions(self, source_B: Int64s, target_B: Int64s) -> tuple[int, ...]:
        """Returns the positions of each stack that hold these lengths."""
        if self.stacks == 1:
            return _rounded((int((source_B + target_B).max()) - 1,), self.multiple, self.limit)
        return _rounded((int(source_B.max()), max(1, int(target_B.max()))), self.multiple, self.limit)

    def batch(self, texts: Texts, positions: tuple[int, ...], weight_B: NDArray[np.floating]) -> HostBatch:
        """`weight_B` is that of each token of a target, the end symbol included."""
        return texts.host_batch(positions, self.pad, weight_B)

    def probe(self, model: ModelConfig) -> HostBatch:
        return halves(model)


@dataclass(frozen=True)
class TextToText:
    """Labels: the next tokens [S, B], or of two stacks the target [T, B], and their weights. Positions are a multiple
    of `multiple` and at most `limit`.
    """

    stacks: int
    answer_KT: Int64s  # padded at the end
    length_K: Int64s
    pad: int
    limit: int
    multiple: int
    head: HeadSpec = TEXT

    @classmethod
    def of(cls, stacks: int, answers: Sequence[NDArray[np.integer]], pad: int, limit: int, multiple: int) -> TextToText:
        length_K = np.array([len(answer) for answer in answers])
        answer_KT = np.full((len(answers), length_K.max()), pad, dtype=np.int64)
        for answer, row_T in zip(answers, answer_KT, strict=True):
            row_T[: len(answer)] = answer
        return cls(stacks, answer_KT, length_K, pad, limit, multiple)

    def positions(self, source: int) -> tuple[int, ...]:
        """Returns the positions of each stack, where the longest source has so many tokens. A batch's shape depends on
        nothing else.
        """
        target = self.answer_KT.shape[1]
        needed = (source, target) if self.stacks == 2 else (source + target - 1,)
        return _rounded(needed, self.multiple, self.limit)

    def batch(
        self, source_BS: NDArray[np.integer], source_B: Int64s, answer_B: Int64s, weight_B: NDArray[np.floating]
    ) -> HostBatch:
        """`weight_B` is that of each token of an answer, the end symbol included; 0 where a row only fills up."""
        texts = Texts(source_BS.astype(np.int64), source_B, self.answer_KT[answer_B], self.length_K[answer_B])
        return texts.host_batch(self.positions(source_BS.shape[1]), self.pad, weight_B)

    def probe(self, model: ModelConfig) -> HostBatch:
        return halves(model)
