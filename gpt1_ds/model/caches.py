"""What layers keep of the positions that they have seen, so that a text is written a position at a time.

The rows of a batch end in the same column of all caches. A row that is shorter than others begins later, and the
columns before it are padding, which its tokens do not see.

Shapes: B rows, R rows that are taken from them, S new positions, T columns so far, N heads on this rank, G = B x N,
H head width, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Where a CUDA graph reads one position: its column is a number on the device, int64 [1], and attention reads the
    first `width` columns of the buffers. Those after the position's are hidden; they must hold finite numbers.
    """

    column_1: Tensor
    width: int


class Columns:
    """Where rows lie: `size` columns at most, `seen` so far, tokens from `first_B` on (int64; None: from the first
    column on). All layers share it, and what they would compute alike in a pass. The model advances it after the last
    layer.
    """

    def __init__(self, size: int, first_B: Tensor | None = None) -> None:
        self.size, self.first_B, self.seen = size, first_B, 0
        self.place: Place | None = None
        self._known: dict[str, Tensor] = {}

    @property
    def first_new(self) -> int | Tensor:
        """Returns the column of the first new position."""
        return self.seen if self.place is None else self.place.column_1

    def advance(self, positions: int) -> None:
        """Ends a pass over new positions."""
        self._known.clear()
        if self.place is None:
            self.seen += positions

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Returns what `make` gives, which is called once in a pass."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def visible(self, positions: int, columns: int) -> Tensor | None:
        """Returns booleans [B or 1, S, T], true where a token of the last S columns may see a column: one that is no
        padding, and does not lie after the graph's. None where there is nothing to hide. Padding sees itself, so that
        its numbers stay finite.
        """
        place, first_B = self.place, self.first_B
        known = first_B if place is None else place.column_1
        if known is None:
            return None
        device = known.device

        def make() -> Tensor:
            column_T = torch.arange(columns, device=device)
            is_text_BT = column_T[None] >= (0 if first_B is None else first_B[:, None])
            if place is not None:
                return (is_text_BT & (column_T <= place.column_1))[:, None, :]
            return is_text_BT[:, None, :] | ~is_text_BT[:, columns - positions :, None]

        return self.once("visible", make)

    def select(self, rows_R: Tensor) -> None:
        """Keeps these rows."""
        self._known.clear()
        if self.first_B is not None:
            self.first_B = selected(self.first_B, self.first_B[rows_R])


class KeyValueCache:
    """Keys and values of the columns so far, in buffers that hold all that there will be."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.both_2GTH: Tensor | None = None

    def extend(self, both_2GSH: Tensor) -> Tensor:
        """Takes keys and values of S new columns, [2, G, S, H]. Returns those of all that attention reads, the new ones
        among them, [2, G, T, H]: a view of the buffers.
        """
        columns = self.columns
        if self.both_2GTH is None:
            _, groups, _, width = both_2GSH.shape
            self.both_2GTH = both_2GSH.new_empty(2, groups, columns.size, width)
        if columns.place is not None:
            self.both_2GTH.index_copy_(2, columns.place.column_1, both_2GSH)
            return self.both_2GTH[:, :, : columns.place.width]
        until = columns.seen + both_2GSH.shape[2]
        assert until <= columns.size, "the cache is full"
        self.both_2GTH[:, :, columns.seen : until] = both_2GSH
        return self.both_2GTH[:, :, :until]

    def clear_rest(self) -> None:
        """Writes zeros where nothing was written yet: a weight of 0 times what memory held may be no number."""
        if self.both_2GTH is not None:
            self.both_2GTH[:, :, self.columns.seen :] = 0

    def select(self, rows_R: Tensor, rows: int) -> None:
        """Keeps those of the rows `rows_R` out of `rows`, in this order; a row may be there several times."""
        if self.both_2GTH is None:
            return
        old, seen = self.both_2GTH.unflatten(1, (rows, -1)), self.columns.seen
        chosen = old[:, :, :, :seen].index_select(1, rows_R)
        new = old if len(rows_R) == rows else old.new_empty(2, len(rows_R), *old.shape[2:])
        new[:, :, :, :seen] = chosen
        self.both_2GTH = new.flatten(1, 2)


class MemoryCache:
    """Cross attention's keys and values, which stay the same for all positions of the target."""

    def __init__(self) -> None:
        self.both_2GTH: Tensor | None = None

    def of(self, make: Callable[[Tensor], Tensor], memory_TBD: Tensor) -> Tensor:
        if self.both_2GTH is None:
            self.both_2GTH = make(memory_TBD).contiguous()  # they are read at every position
        return self.both_2GTH

    def select(self, rows_R: Tensor, rows: int) -> None:
        old = self.both_2GTH
        if old is not None:
            self.both_2GTH = selected(old, old.unflatten(1, (rows, -1)).index_select(1, rows_R).flatten(1, 2))


@dataclass(frozen=True)
class BlockCache:
    """What a block's attentions keep of its own stack and of the memory."""

    columns: Columns
    own: KeyValueCache
    memory: MemoryCache

    def select(self, rows_R: Tensor, rows: int) -> None:
        self.own.select(rows_R, rows)


class Recurrence:
    """State after the columns so far."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.state: tuple[Tensor, Tensor] | None = None  # each [1, B, U]

    def select(self, rows_R: Tensor, rows: int) -> None:
        """Keeps the states of these rows."""
        if self.state is not None:
            state, cell = self.state
            self.state = state[:, rows_R], cell[:, rows_R]


def selected(old: Tensor, new: Tensor) -> Tensor:
    """Returns `new`, in the memory of `old` where it is as large: a CUDA graph reads it there."""
    return old.copy_(new) if old.shape == new.shape else new


@dataclass(frozen=True)
class Caches:
    """One for each layer that sees new positions, None for one that looks at one position only. The embeddings of
    positions have the columns themselves.
    """

    columns: Columns
    layers: list[Any]

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Within, the next position is the one at `place`, and no column is counted."""
        self.columns.place = place
        try:
            yield
        finally:
            self.columns.place = None

    def clear_rest(self) -> None:
        """Writes zeros where no column is yet."""
        for cache in self.layers:
            if isinstance(cache, BlockCache):
                cache.own.clear_rest()

    def select(self, rows_R: Tensor, rows: int, moved: bool) -> None:
        """Keeps the rows `rows_R` out of `rows`, in this order. `moved`: whether some of them now stand where a row of
        another memory was.
        """
        self.columns.select(rows_R)
        for cache in self.layers:
            if cache is not None and cache is not self.columns:
                cache.select(rows_R, rows)
            if moved and isinstance(cache, BlockCache):
                cache.memory.select(rows_R, rows)
