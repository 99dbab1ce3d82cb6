"""Span corruption: spans of a text are replaced by sentinels, and predicted (Raffel et al. 2020, section 3.1.4).

    text     a b c d e f g h i j
    source   a b <0> e f g <1> j </s>
    target   <0> c d <1> h i </s>

Tokens that are replaced are called noise. Noise tokens and the others are each parted into as many non-empty runs as
there are spans, every partition as likely as the others (random_spans_noise_mask of the authors' code); a text begins
with a run of the others. As in that code no sentinel follows the last span. Lengths are the same for all texts.

Without a mean length of spans each noise token is drawn alone, and neighbours make one span.

Shapes: B rows, G of the global batch, L tokens of a text, P spans, S tokens of a source, T of a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.loader import Rows
from gpt1_ds.data.windows import Int64s
from gpt1_ds.objectives.base import HostBatch, UInt64s, draws
from gpt1_ds.objectives.documents import numbers
from gpt1_ds.objectives.source_target import Texts, halves, token_weights


@dataclass(frozen=True)
class SpanText:
    """What the spans of a run depend on besides its settings. Sentinel k is the id `last` - k."""

    last: int
    end: int
    pad: int
    key: int  # 64 bits of (seed, data hash)
    apart: bool = False  # whether documents, which have this `end`, do not see one another


@dataclass(frozen=True)
class Spans:
    """Labels: the next tokens [S, B], or of two stacks the target [T, B], and their weights. Without a `text` only the
    probe can be made.
    """

    settings: ObjectiveConfig
    model: ModelConfig
    text: SpanText | None = None
    head: None = None
    predicts_all: ClassVar[bool] = False
    predicts_places: ClassVar[bool] = False

    @property
    def _all_tokens(self) -> bool:
        return self.settings.predict == "all"

    def counts(self, rows: Rows, real: int, global_batch: int) -> tuple[int, int]:
        predicted = int(self._predicted(rows.number_G)[rows.number_G >= 0].sum())
        return predicted, predicted

    def batch(self, rows: Rows) -> HostBatch:
        weight_B = token_weights(rows.number_G, rows.row_B, self._predicted(rows.number_G))
        number_B = np.where(rows.row_B >= 0, rows.number_G[rows.row_B], -1)
        return self._host_batch(self.texts(rows.tokens_BT[:, :-1], number_B), weight_B)

    def probe(self, model: ModelConfig) -> HostBatch:
        """Nothing is masked: the second half follows from the first."""
        return halves(model)

    def noise(self, number_B: Int64s) -> NDArray[np.bool_]:
        """Returns [B, L]: which tokens of these sequences are noise."""
        assert self.text is not None, "the caller has a tokenizer"
        length = self.settings.lengths(self.model).text
        noise, spans = self.settings.noise(length)
        draw_BL = draws(number_B, length, self.text.key)
        if self.settings.mean_length is None:
            chosen_BN = np.argpartition(draw_BL, noise - 1, 1)[:, :noise]
            is_noise_BL = np.zeros(draw_BL.shape, dtype=np.bool_)
            np.put_along_axis(is_noise_BL, chosen_BN, True, 1)
            return is_noise_BL
        others_BP = _random_partition(draw_BL[:, noise - 1 : length - 2], length - noise, spans)
        noise_BP = _random_partition(draw_BL[:, : noise - 1], noise, spans)
        run_lengths = np.stack([others_BP, noise_BP], 2).reshape(len(number_B), 2 * spans)  # others, noise, others, ...
        run_stops = np.cumsum(run_lengths, 1)
        run_BL = (np.arange(length)[:, None] >= run_stops[:, None]).sum(2)  # number of the run of each token
        return run_BL % 2 == 1  # type: ignore[no-any-return]

    def texts(self, tokens_BL: Int64s, number_B: Int64s) -> Texts:
        """Returns the sources and targets of these sequences."""
        assert self.text is not None, "the caller has a tokenizer"
        is_noise_BL = self.noise(number_B)
        begins_BL = _span_begins(is_noise_BL)
        sentinel_BL = self.text.last - np.cumsum(begins_BL, 1) + 1
        end_B = np.full(len(tokens_BL), self.text.end)
        source_BS, target_BT = _source_and_target(is_noise_BL, tokens_BL, sentinel_BL, end_B, self.text.pad)
        documents = None
        if self.text.apart:  # a sentinel is of the document of the token that it first stands for
            document_BL = numbers(tokens_BL, self.text.end)
            documents = _source_and_target(is_noise_BL, document_BL, document_BL, document_BL[:, -1], 0)
        source_B, target_B = (~is_noise_BL | begins_BL).sum(1) + 1, is_noise_BL.sum(1) + begins_BL.sum(1) + 1
        return Texts(source_BS, source_B, target_BT, target_B, documents)

    def _predicted(self, number_G: Int64s) -> Int64s:
        """Returns the number of tokens of each row that the loss counts."""
        length = self.settings.lengths(self.model).text
        if self.settings.mean_length is not None:
            source, target = self.settings.span_lengths(length)
            return np.full(len(number_G), source + target - 1 if self._all_tokens else target)
        spans_G = _span_counts(self, number_G.tobytes())
        return length + 2 * spans_G + 1 if self._all_tokens else self.settings.noise(length)[0] + spans_G + 1

    def _host_batch(self, texts: Texts, weight_B: NDArray[np.floating]) -> HostBatch:
        assert self.text is not None, "the caller has a tokenizer"
        return texts.host_batch(self.settings.lengths(self.model).stacks, self.text.pad, weight_B, self._all_tokens)


@lru_cache(maxsize=2)  # every micro-batch of a global batch asks for all of them
def _span_counts(objective: Spans, numbers: bytes) -> Int64s:
    """Returns int64 [G]: how many spans the sequences with these numbers (int64) have, where it is not the same in
    all.
    """
    is_noise_GL = objective.noise(np.frombuffer(numbers, dtype=np.int64))
    spans_G: Int64s = _span_begins(is_noise_GL).sum(1)
    return spans_G


def _span_begins(is_noise_BL: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns [B, L]: which tokens are the first ones of their spans."""
    return is_noise_BL & ~np.pad(is_noise_BL, ((0, 0), (1, 0)))[:, :-1]


def _random_partition(draw_BN: UInt64s, total: int, parts: int) -> Int64s:
    """Returns [B, parts]: the lengths of non-empty runs into which `total` tokens are parted. Each of the N = total - 1
    places between two tokens has a draw, and those with the smallest draws are borders.
    """
    border_BP = np.sort(np.argsort(draw_BN, 1, kind="stable")[:, : parts - 1], 1) + 1
    zero_B1 = np.zeros((len(draw_BN), 1), dtype=np.int64)
    return np.diff(np.concatenate([zero_B1, border_BP, zero_B1 + total], 1), axis=1)


def _source_and_target(
    is_noise_BL: NDArray[np.bool_], tokens_BL: Int64s, sentinel_BL: Int64s, end_B: Int64s, pad: int
) -> tuple[Int64s, Int64s]:
    """Returns (source, target). `sentinel_BL` counts at the first token of each span. With numbers of documents in
    place of ids it gives the document of each token, sentinel and end.
    """
    B, length = tokens_BL.shape
    begins_BL = _span_begins(is_noise_BL)
    source_BS, target_BT = np.full((B, length + 1), pad), np.full((B, 2 * length + 1), pad)
    in_source_BL = ~is_noise_BL | begins_BL  # a sentinel stands where its span begins
    source_position_BL = np.cumsum(in_source_BL, 1) - 1
    _scatter(source_BS, in_source_BL, source_position_BL, np.where(begins_BL, sentinel_BL, tokens_BL))
    target_position_BL = np.cumsum(is_noise_BL, 1) + np.cumsum(begins_BL, 1) - 1  # each span's sentinel comes before it
    _scatter(target_BT, is_noise_BL, target_position_BL, tokens_BL)
    _scatter(target_BT, begins_BL, target_position_BL - 1, sentinel_BL)
    source_B, target_B = in_source_BL.sum(1), is_noise_BL.sum(1) + begins_BL.sum(1)
    source_BS[np.arange(B), source_B] = target_BT[np.arange(B), target_B] = end_B
    return source_BS, target_BT[:, : int(target_B.max()) + 1]


def _scatter(rows_BX: Int64s, chosen_BL: NDArray[np.bool_], position_BL: Int64s, values_BL: Int64s) -> None:
    """Writes the values that are chosen to their positions in the same row."""
    row, place = np.nonzero(chosen_BL)
    rows_BX[row, position_BL[row, place]] = values_BL[row, place]
