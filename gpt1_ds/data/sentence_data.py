"""Rows of whole sentences, and the batches of a data-parallel rank that are made of them.

A row takes sentences until the next one does not fit; between two documents stands one more separator, or the row ends
there (Liu et al. 2019, section 4.2: FULL-SENTENCES, DOC-SENTENCES). A sentence that is longer than a row fills rows of
its own. The rows are the same in every pass, which reads them in another order.

Sequence n of a run is one row of one source, whatever the layout; every rank knows the lengths of all rows of a global
batch, and reads the tokens of its own.

Shapes: G rows of the global batch, R rows that are asked for, B rows of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.loader import Batch, BatchShape, HeldOut
from gpt1_ds.data.pairs import Pairs
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.sentences import Sentences, follow
from gpt1_ds.data.spans import GlobalBatch, Spans, SpecialTokens
from gpt1_ds.data.windows import Int64s, WindowOrder, blend, fingerprint

SAMPLE = 1024  # rows that tell how long rows are


class FullSentences:
    """Every row of one split; rows of one document alone are not `across` documents. Making it reads the index once:
    1 s for a million sentences. Raises DataError for a split without text.
    """

    def __init__(
        self,
        sentences: Sentences,
        context: int,
        data_hash: str,
        seed: int,
        used: int | None = None,
        across: bool = True,
    ) -> None:
        self.stream = sentences.stream
        if not sentences.documents:
            raise DataError(f"{self.stream.folder}: its {self.stream.name} split has no text; build it of other text")
        self._start, self._stop = _rows(sentences, context - 2, across)
        rows = len(self._start)
        self._order = WindowOrder(rows, rows if used is None else min(used, rows), data_hash, seed)

    @property
    def rows_per_pass(self) -> int:
        return self._order.used

    def copy_numbers(self, number_R: Int64s, copies: int) -> Int64s:
        """Returns one number for the row that each of these sequences of the source is and for which of its copies it
        is.
        """
        return self._order.at(number_R) * copies + number_R // self._order.used % copies

    def spans(self, number_R: Int64s) -> Spans:
        """Returns the rows of these sequences of the source, counted through all passes."""
        row_R = self._order.at(number_R)
        start_RT, stop_RT = np.zeros((2, len(row_R), 2), dtype=np.int64)
        start_RT[:, 0], stop_RT[:, 0] = self._start[row_R], self._stop[row_R]
        return Spans(start_RT, stop_RT, np.full(len(row_R), -1))


def _rows(sentences: Sentences, most: int, across: bool) -> tuple[Int64s, Int64s]:
    """Returns (first token of each row, token after its last), rows of at most `most` tokens."""
    starts, stops, begin = [], [], 0
    for block in sentences.blocks(ahead=most):
        fits_N = np.searchsorted(block.end_N, block.start_N + most, side="right")
        next_N = np.maximum(fits_N, np.arange(len(fits_N)) + 1)
        if not across:
            next_N = np.minimum(next_N, np.arange(len(fits_N)) + block.left_N)
        chosen_R, begin = follow(next_N, begin, block.inside)
        begin -= block.inside
        start_R, stop_R = block.start_N[chosen_R], block.end_N[next_N[chosen_R] - 1]
        pieces_R = -(-(stop_R - start_R) // most)  # more than one of a sentence that is longer than a row
        piece = np.arange(pieces_R.sum()) - np.repeat(np.cumsum(pieces_R) - pieces_R, pieces_R)
        starts.append(np.repeat(start_R, pieces_R) + piece * most)
        stops.append(np.minimum(starts[-1] + most, np.repeat(stop_R, pieces_R)))
    return np.concatenate(starts), np.concatenate(stops)


Text = FullSentences | Pairs


class SentenceTraining:
    """Random access to the global batches of a run over one or several datasets, as TrainingData gives it."""

    def __init__(
        self, texts: Sequence[Text], weights: Sequence[float], context: int, special: SpecialTokens, copies: int = 0
    ) -> None:
        self.texts, self.weights, self.context = list(texts), list(weights), context
        self.special, self.copies = special, copies

    @property
    def streams(self) -> list[TokenStream]:
        return [text.stream for text in self.texts]

    @property
    def rows_per_pass(self) -> list[int]:
        """Returns the number of rows of a pass over each source."""
        return [text.rows_per_pass for text in self.texts]

    @property
    def tokens_per_epoch(self) -> int:
        """Returns the number of positions of all rows of all sources, padding counted: as many as a run counts for
        them.
        """
        return sum(self.rows_per_pass) * self.context

    def batch(self, step: int, shape: BatchShape) -> Batch:
        """Returns the rank's part of the batch of optimizer step `step` (1 is the first)."""
        batch = self._global(shape.numbers(step))
        micro_batches = [batch.rows(row_B) for row_B in shape.rows()]
        total = sum(fingerprint(rows.tokens_BS, rows.row_B) for rows in micro_batches)
        return Batch(micro_batches, (total + 2**63) % 2**64 - 2**63)

    def documents(self, number: int, rows: Sequence[int], shape: BatchShape) -> list[dict[str, Any]]:
        """Returns where the text of these rows of batch `number` comes from: dataset folder and document numbers, by
        row.
        """
        batch = self._global(shape.numbers(number))
        found = []
        for row in rows:
            stream = batch.stream_G[row]
            assert stream is not None, "every row of a training batch has text"
            ranges = zip(batch.spans_G.start_RT[row].tolist(), batch.spans_G.stop_RT[row].tolist(), strict=True)
            documents = [document for at, stop in ranges for document in stream.documents_of(at, stop - at)]
            found.append({"row": int(row), "data": str(stream.folder), "documents": documents})
        return found

    def mean_row(self) -> float:
        """Returns the number of tokens of a row, symbols counted and padding not: the mean of the first rows of a
        run.
        """
        return float(self._global(np.arange(SAMPLE)).spans_G.row_lengths.mean())

    def _global(self, number_G: Int64s) -> GlobalBatch:
        source_G, place_G = blend(number_G, self.weights)
        spans_G, version_G = Spans.empty(len(number_G)), number_G.copy()
        for at, text in enumerate(self.texts):
            here = np.flatnonzero(source_G == at)
            spans_G.put(here, text.spans(place_G[here]))
            if self.copies:  # then masks depend on the row and on which of its copies it is, as with windows
                version_G[here] = text.copy_numbers(place_G[here], self.copies) * len(self.texts) + at
        streams = [self.texts[source].stream for source in source_G]
        return GlobalBatch(spans_G, streams, version_G, self.special, self.context)


class SentenceHeldOut(HeldOut):
    """The rows of the split's first pass."""

    def __init__(self, text: Text, context: int, special: SpecialTokens) -> None:
        super().__init__(text.stream, text.rows_per_pass)
        self.text, self.context, self.special = text, context, special

    def _batch(self, number: int, shape: BatchShape) -> list[TextRows]:
        number_G: Int64s = number * shape.global_batch + np.arange(shape.global_batch)
        real = np.flatnonzero(number_G < self.rows)
        spans_G = Spans.empty(shape.global_batch)
        spans_G.put(real, self.text.spans(number_G[real]))
        streams = [self.text.stream if n < self.rows else None for n in number_G]
        batch = GlobalBatch(spans_G, streams, number_G, self.special, self.context)
        return [batch.rows(row_B) for row_B in shape.rows()]
