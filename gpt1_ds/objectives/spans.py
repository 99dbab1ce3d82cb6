"""Span corruption: spans of a text are replaced by sentinels, and predicted (Raffel et al. 2020, section 3.1.4).

    text     a b c d e f g h i j
    source   a b <0> e f g <1> j </s>
    target   <0> c d <1> h i </s>

Noise tokens and the others are each parted into as many non-empty runs as there are spans, every partition as likely
as the others (random_spans_noise_mask of the authors' code); a text begins with a run of the others. As in that code
no sentinel follows the last span. Lengths are the same for all texts.

Shapes: B rows, L tokens of a text, P spans, S tokens of a source, T of a target.
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
        """[B, L]: which tokens of these sequences the sentinels stand for."""
        assert self.text is not None, "the caller has a tokenizer"
        length = self.settings.lengths(self.model).text
        noise, spans = self.settings.noise(length)
        draw_BL = draws(number_B, length, self.text.key)
        if self.settings.mean_length is None:
            chosen_BN = np.argpartition(draw_BL, noise - 1, 1)[:, :noise]
            is_noise_BL = np.zeros(draw_BL.shape, dtype=np.bool_)
            np.put_along_axis(is_noise_BL, chosen_BN, True, 1)
            return is_noise_BL
        others_BP = _parts(draw_BL[:, noise - 1 : length - 2], length - noise, spans)
        noise_BP = _parts(draw_BL[:, : noise - 1], noise, spans)
        runs_BP = np.stack([others_BP, noise_BP], 2).reshape(len(number_B), 2 * spans)
        ends_BP = np.cumsum(runs_BP, 1)
        run_BL = (np.arange(length)[:, None] >= ends_BP[:, None]).sum(2)  # number of the run of each token
        return run_BL % 2 == 1  # type: ignore[no-any-return]

    def texts(self, tokens_BL: Int64s, number_B: Int64s) -> Texts:
        assert self.text is not None, "the caller has a tokenizer"
        is_noise_BL = self.noise(number_B)
        begins_BL = _begins(is_noise_BL)
        sentinel_BL = self.text.last - np.cumsum(begins_BL, 1) + 1
        end_B = np.full(len(tokens_BL), self.text.end)
        source_BS, target_BT = _parted(is_noise_BL, tokens_BL, sentinel_BL, end_B, self.text.pad)
        documents = None
        if self.text.apart:  # a sentinel is of the document of the token that it first stands for
            document_BL = numbers(tokens_BL, self.text.end)
            documents = _parted(is_noise_BL, document_BL, document_BL, document_BL[:, -1], 0)
        source_B, target_B = (~is_noise_BL | begins_BL).sum(1) + 1, is_noise_BL.sum(1) + begins_BL.sum(1) + 1
        return Texts(source_BS, source_B, target_BT, target_B, documents)

    def _predicted(self, number_G: Int64s) -> Int64s:
        """Tokens of each row that the loss counts."""
        length = self.settings.lengths(self.model).text
        if self.settings.mean_length is not None:
            source, target = self.settings.span_lengths(length)
            return np.full(len(number_G), source + target - 1 if self._all_tokens else target)
        spans_G = _spans_of(self, number_G.tobytes())
        return length + 2 * spans_G + 1 if self._all_tokens else self.settings.noise(length)[0] + spans_G + 1

    def _host_batch(self, texts: Texts, weight_B: NDArray[np.floating]) -> HostBatch:
        assert self.text is not None, "the caller has a tokenizer"
        return texts.host_batch(self.settings.lengths(self.model).stacks, self.text.pad, weight_B, self._all_tokens)


@lru_cache(maxsize=2)  # every micro-batch of a global batch asks for all of them
def _spans_of(objective: Spans, numbers: bytes) -> Int64s:
    """[G]: spans of the sequences with these numbers, int64, where they are not the same in all."""
    is_noise_GL = objective.noise(np.frombuffer(numbers, dtype=np.int64))
    spans_G: Int64s = _begins(is_noise_GL).sum(1)
    return spans_G


def _begins(is_noise_BL: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tokens are the first ones of their spans."""
    return is_noise_BL & ~np.pad(is_noise_BL, ((0, 0), (1, 0)))[:, :-1]


def _parts(draw_BN: UInt64s, total: int, parts: int) -> Int64s:
    """[B, parts]: lengths of non-empty runs that `total` tokens are parted into, of which draws [B, total - 1] choose
    one at random.
    """
    ends_BP = np.sort(np.argsort(draw_BN, 1, kind="stable")[:, : parts - 1], 1) + 1
    before = np.zeros((len(draw_BN), 1), dtype=np.int64)
    return np.diff(np.concatenate([before, ends_BP, before + total], 1), axis=1)


def _parted(
    is_noise_BL: NDArray[np.bool_], tokens_BL: Int64s, sentinel_BL: Int64s, end_B: Int64s, pad: int
) -> tuple[Int64s, Int64s]:
    """(source, target), or in their places what belongs to each token, sentinel and end of them."""
    B, length = tokens_BL.shape
    begins_BL = _begins(is_noise_BL)
    stays_BL = ~is_noise_BL | begins_BL
    source_BS, target_BT = np.full((B, length + 1), pad), np.full((B, 2 * length + 1), pad)
    rows, at = np.nonzero(stays_BL)
    source_BS[rows, (np.cumsum(stays_BL, 1) - 1)[rows, at]] = np.where(begins_BL, sentinel_BL, tokens_BL)[rows, at]
    place_BL = np.cumsum(is_noise_BL, 1) + np.cumsum(begins_BL, 1) - 1  # each span's sentinel comes before it
    rows, at = np.nonzero(is_noise_BL)
    target_BT[rows, place_BL[rows, at]] = tokens_BL[rows, at]
    rows, at = np.nonzero(begins_BL)
    target_BT[rows, place_BL[rows, at] - 1] = sentinel_BL[rows, at]
    target_B = is_noise_BL.sum(1) + begins_BL.sum(1)
    source_BS[np.arange(B), stays_BL.sum(1)] = target_BT[np.arange(B), target_B] = end_B
    return source_BS, target_BT[:, : int(target_B.max()) + 1]
