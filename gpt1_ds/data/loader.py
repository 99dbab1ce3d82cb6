"""Batches of token windows for one data-parallel rank: those to train on, and those of the validation split.

Shapes: B rows, S context, T = S + 1 tokens of a window (inputs and, shifted by one, labels), G rows of the global
batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.rows import TextRows, count_windows
from gpt1_ds.data.windows import Int64s, WindowOrder, blend, fingerprint


@dataclass(frozen=True)
class Rows:
    """One micro-batch: tokens [B, T] and the number of each row within its global batch. Padding rows have row -1.

    `number_G` are the numbers in the run of all sequences of the global batch, -1 of what only fills it up: an
    objective that draws something draws it by number.
    """

    tokens_BT: Int64s
    row_B: Int64s
    number_G: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Batch:
    """This rank's micro-batches of one global batch, and its part of the batch's fingerprint."""

    micro_batches: list[Rows] | list[TextRows]
    fingerprint: int


@dataclass(frozen=True)
class BatchShape:
    """How a global batch falls on ranks: `global_batch` rows over `data_size` ranks, `micro_batch` rows at a time.

    `first` is the number in the run of its first sequence; None: all batches before it have its size.
    """

    global_batch: int
    micro_batch: int
    data_size: int = 1
    data_rank: int = 0
    first: int | None = None

    def of_batch(self, number: int, sizes: BatchSizes) -> BatchShape:
        """Returns the shape of batch `number` (1 is the first) of a run."""
        batch = sizes.batch(number)
        return replace(self, global_batch=batch.size, first=batch.before)

    def numbers(self, step: int) -> Int64s:
        """Returns int64 [G]: the numbers in the run of the sequences of batch `step`."""
        first = (step - 1) * self.global_batch if self.first is None else self.first
        return first + np.arange(self.global_batch)

    def rows(self) -> list[Int64s]:
        """Returns the row numbers of each of this rank's micro-batches."""
        per_rank = self.global_batch // self.data_size
        first = self.data_rank * per_rank
        return [np.arange(at, at + self.micro_batch) for at in range(first, first + per_rank, self.micro_batch)]


class TrainingData:
    """Random access to the global batches of a run over one or several datasets."""

    def __init__(
        self,
        streams: Sequence[TokenStream],
        hashes: Sequence[str],
        weights: Sequence[float],
        context: int,
        seed: int,
        unique_tokens: int | None = None,
        moving: bool = False,
        whole: bool = False,
        copies: int = 0,
    ) -> None:
        self.streams, self.weights, self.context = list(streams), list(weights), context
        self.whole, self.copies = whole, copies
        self.orders = []
        for stream, data_hash in zip(streams, hashes, strict=True):
            windows = count_windows(stream, context)
            used = windows if unique_tokens is None else min(windows, math.ceil(unique_tokens / context))
            self.orders.append(WindowOrder(windows, used, data_hash, seed, moving))

    @property
    def rows_per_pass(self) -> list[int]:
        """Returns the number of rows of a pass over each source."""
        return [order.used for order in self.orders]

    @property
    def tokens_per_epoch(self) -> int:
        """Distinct training tokens of all sources together."""
        return sum(self.rows_per_pass) * self.context

    def batch(self, step: int, shape: BatchShape) -> Batch:
        """Returns the rank's share of the batch of optimizer step `step` (1 is the first)."""
        micro_batches, total = list[Any](), 0
        lengths_G = np.full(shape.global_batch, self.context) if self.whole else None
        number_G = shape.numbers(step)
        for rows in shape.rows():
            tokens_BT = self.windows(number_G[rows])
            if lengths_G is None:
                micro_batches.append(Rows(tokens_BT, rows, number_G))
            else:
                micro_batches.append(TextRows.of_windows(tokens_BT, rows, self._versions(number_G[rows]), lengths_G))
            total += fingerprint(tokens_BT, rows)
        return Batch(micro_batches, (total + 2**63) % 2**64 - 2**63)

    def _versions(self, sequence: Int64s) -> Int64s:
        """Returns what the masks of these sequences depend on: their number in the run, or, where there are `copies` of
        each window, which window it is and which of its copies.
        """
        if not self.copies:
            return sequence
        source, number = blend(sequence, self.weights)
        version = np.empty_like(sequence)
        for at, order in enumerate(self.orders):
            here = source == at
            copy = number[here] // order.used % self.copies
            version[here] = (order.at(number[here]) * self.copies + copy) * len(self.orders) + at
        return version

    def documents(self, number: int, rows: Sequence[int], shape: BatchShape) -> list[dict[str, Any]]:
        """Returns where the text of these rows of batch `number` comes from: dataset folder and document numbers."""
        sequence = shape.numbers(number)[np.asarray(rows, dtype=np.int64)]
        source, place = blend(sequence, self.weights)
        found = []
        for row, at, of_source in zip(rows, source, place, strict=True):
            stream = self.streams[at]
            start = int(self.orders[at].starts(np.array([of_source]), self.context, stream.tokens)[0])
            pieces = stream.ring(start, self.context + 1)
            documents = [document for piece in pieces for document in stream.documents_of(*piece)]
            found.append({"row": int(row), "data": str(stream.folder), "documents": documents})
        return found

    def windows(self, sequence: Int64s) -> Int64s:
        """Returns int64 [len(sequence), T]: the windows of these sequence numbers."""
        source, number = blend(sequence, self.weights)
        tokens_BT = np.empty((len(sequence), self.context + 1), dtype=np.int64)
        for at, (stream, order) in enumerate(zip(self.streams, self.orders, strict=True)):
            here = np.flatnonzero(source == at)
            for row, start in zip(here, order.starts(number[here], self.context, stream.tokens), strict=True):
                tokens_BT[row] = read(stream, int(start), self.context + 1)
        return tokens_BT


def read(stream: TokenStream, start: int, count: int) -> NDArray[np.integer]:
    """Returns [count] tokens of a window, all of them in the vocabulary. Raises DataError."""
    pieces = [stream.read(*piece) for piece in stream.ring(start, count)]
    tokens = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    stream.check(tokens, start)
    return tokens


class HeldOut(ABC):
    """The rows of the validation split in one fixed order; the same for every run."""

    def __init__(self, stream: TokenStream, rows: int) -> None:
        self.stream, self.rows = stream, rows

    def count(self, shape: BatchShape, limit: int = 0) -> int:
        """Returns how many the first `limit` global batches (0: all) are."""
        return min(limit or self.rows, math.ceil(self.rows / shape.global_batch))

    def batches(self, shape: BatchShape, limit: int = 0) -> Iterator[list[Any]]:
        """Yields this rank's micro-batches of each, Rows or TextRows; the last is filled up with row -1."""
        return (self._batch(number, shape) for number in range(self.count(shape, limit)))  # all do not fit memory

    @abstractmethod
    def _batch(self, number: int, shape: BatchShape) -> list[Any]:
        """Returns this rank's micro-batches of a global batch."""


class HeldOutData(HeldOut):
    """Windows, in an order that samples the split evenly."""

    def __init__(self, stream: TokenStream, data_hash: str, context: int, whole: bool = False) -> None:
        super().__init__(stream, count_windows(stream, context))
        self.context, self.whole = context, whole
        self.order = WindowOrder(self.rows, self.rows, data_hash, seed=0)

    def _batch(self, number: int, shape: BatchShape) -> list[Any]:
        micro_batches: list[Any] = []
        all_rows = number * shape.global_batch + np.arange(shape.global_batch)
        lengths_G = np.where(all_rows < self.rows, self.context, 0) if self.whole else None
        for rows in shape.rows():
            sequence = number * shape.global_batch + rows
            real = sequence < self.rows
            tokens_BT = np.zeros((len(rows), self.context + 1), dtype=np.int64)
            for row, window in zip(np.flatnonzero(real), self.order.at(sequence[real]), strict=True):
                tokens_BT[row] = read(self.stream, int(window) * self.context, self.context + 1)
            row_B = np.where(real, rows, -1)
            if lengths_G is None:
                micro_batches.append(Rows(tokens_BT, row_B, np.where(all_rows < self.rows, all_rows, -1)))
            else:
                micro_batches.append(TextRows.of_windows(tokens_BT, row_B, sequence, lengths_G))
        return micro_batches
