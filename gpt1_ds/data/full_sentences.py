"""Rows of whole sentences, one after the other, across documents (FULL-SENTENCES; Liu et al. 2019, section 4.2).

A row takes sentences until the next one does not fit; between two documents stands one more separator. A sentence that
is longer than a row fills rows of its own. The rows are the same in every pass, which reads them in another order.

Shapes: R rows that are asked for.
"""

from __future__ import annotations

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.sentences import Sentences, follow
from gpt1_ds.data.spans import Spans
from gpt1_ds.data.windows import Int64s, WindowOrder


class FullSentences:
    """Every row of one split. Making it reads the index once: 1 s for a million sentences. Raises DataError for a split
    without text.
    """

    def __init__(self, sentences: Sentences, context: int, data_hash: str, seed: int, used: int | None = None) -> None:
        self.stream = sentences.stream
        if not sentences.documents:
            raise DataError(f"{self.stream.folder}: its {self.stream.name} split has no text; build it of other text")
        self._start, self._stop = _rows(sentences, context - 2)
        rows = len(self._start)
        self._order = WindowOrder(rows, rows if used is None else min(used, rows), data_hash, seed)

    @property
    def rows_per_pass(self) -> int:
        return self._order.used

    def copies(self, number_R: Int64s, copies: int) -> Int64s:
        """Which row each of these sequences of the source is, and which of so many copies of it: one number."""
        return self._order.at(number_R) * copies + number_R // self._order.used % copies

    def spans(self, number_R: Int64s) -> Spans:
        """The rows of these sequences of the source, counted through all passes."""
        row_R = self._order.at(number_R)
        start_RT, stop_RT = np.zeros((2, len(row_R), 2), dtype=np.int64)
        start_RT[:, 0], stop_RT[:, 0] = self._start[row_R], self._stop[row_R]
        return Spans(start_RT, stop_RT, np.full(len(row_R), -1))


def _rows(sentences: Sentences, most: int) -> tuple[Int64s, Int64s]:
    """(first token of each row, token after its last), rows of at most `most` tokens."""
    starts, stops, begin = [], [], 0
    for block in sentences.blocks(ahead=most):
        fits_N = np.searchsorted(block.end_N, block.start_N + most, side="right")
        next_N = np.maximum(fits_N, np.arange(len(fits_N)) + 1)
        chosen_R, begin = follow(next_N, begin, block.inside)
        begin -= block.inside
        start_R, stop_R = block.start_N[chosen_R], block.end_N[next_N[chosen_R] - 1]
        pieces_R = -(-(stop_R - start_R) // most)  # more than one of a sentence that is longer than a row
        piece = np.arange(pieces_R.sum()) - np.repeat(np.cumsum(pieces_R) - pieces_R, pieces_R)
        starts.append(np.repeat(start_R, pieces_R) + piece * most)
        stops.append(np.minimum(starts[-1] + most, np.repeat(stop_R, pieces_R)))
    return np.concatenate(starts), np.concatenate(stops)
