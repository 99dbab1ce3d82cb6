"""Rows made of one or two spans of a dataset's tokens, and the special tokens around them.

Shapes: R rows, B rows of a micro-batch, S positions (the context), G rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.windows import Int64s


@dataclass(frozen=True)
class SpecialTokens:
    """`[cls] A [separator]` or `[cls] A [separator] B [separator]`, then padding; `<eod>` within a text becomes a
    separator.
    """

    cls: int
    separator: int
    pad: int
    eod: int


@dataclass(frozen=True)
class Spans:
    """Which tokens of a dataset the texts A and B of rows are; B is empty where there is one text."""

    start_RT: Int64s  # [R, 2]
    stop_RT: Int64s  # [R, 2]
    follows_R: Int64s  # as in TextRows

    @classmethod
    def empty(cls, rows: int) -> Spans:
        """Returns the rows without text."""
        start_RT, stop_RT = np.zeros((2, rows, 2), dtype=np.int64)
        return cls(start_RT, stop_RT, np.full(rows, -1))

    def put(self, rows: Int64s | NDArray[np.bool_], other: Spans) -> None:
        """Makes `other` these rows, by number or marked."""
        self.start_RT[rows], self.stop_RT[rows] = other.start_RT, other.stop_RT
        self.follows_R[rows] = other.follows_R

    @property
    def row_lengths(self) -> Int64s:
        """Returns int64 [R]: with the special tokens."""
        texts_RT = self.stop_RT - self.start_RT
        lengths_R: Int64s = texts_RT.sum(1) + 2 + (texts_RT[:, 1] > 0)
        return lengths_R

    def tokens(self, stream: TokenStream, row: int) -> list[Int64s]:
        """Returns the texts of a row. Raises DataError for a token outside the vocabulary."""
        texts = []
        for start, stop in zip(self.start_RT[row].tolist(), self.stop_RT[row].tolist(), strict=True):
            tokens = stream.read(start, stop - start)
            stream.check(tokens, start)
            texts.append(tokens.astype(np.int64))
        return texts


@dataclass(frozen=True)
class GlobalBatch:
    """The rows of a global batch, of which a rank makes some: the spans of each in the stream it is from; where that is
    None, the row only fills up the batch.
    """

    spans_G: Spans
    stream_G: Sequence[TokenStream | None]
    number_G: Int64s
    special: SpecialTokens
    context: int

    def rows(self, row_B: Int64s) -> TextRows:
        """Returns a micro-batch of these rows."""
        B, S = len(row_B), self.context
        tokens_BS = np.full((B, S), self.special.pad, dtype=np.int64)
        special_BS = np.ones((B, S), dtype=np.bool_)
        lengths_G = np.where([stream is not None for stream in self.stream_G], self.spans_G.row_lengths, 0)
        length_B = np.maximum(lengths_G[row_B], 1)  # a row that only fills up is one token of padding
        second_B = length_B.copy()
        for at, row in enumerate(row_B.tolist()):
            stream = self.stream_G[row]
            if stream is not None:
                second_B[at] = self._fill(tokens_BS[at], special_BS[at], self.spans_G.tokens(stream, row))
        follows_B = self.spans_G.follows_R[row_B]
        real_B = np.where(lengths_G[row_B] > 0, row_B, -1)
        return TextRows(tokens_BS, length_B, second_B, follows_B, real_B, self.number_G[row_B], special_BS, lengths_G)

    def _fill(self, tokens_S: Int64s, special_S: NDArray[np.bool_], texts: list[Int64s]) -> int:
        """Writes the texts of a row, and returns the position of the second."""
        tokens_S[0], at = self.special.cls, 1
        second = 0
        for text in texts:
            if at > 1 and not len(text):
                break
            second, stop = at, at + len(text)
            is_border = text == self.special.eod
            tokens_S[at:stop] = np.where(is_border, self.special.separator, text)
            special_S[at:stop] = is_border
            tokens_S[stop], at = self.special.separator, stop + 1
        return second if second > 1 else at
