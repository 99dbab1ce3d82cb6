"""What layers keep of the positions that they have seen, so that a text is written a position at a time.

The rows of a batch end in the same column of all caches. A row that is shorter than others begins later, and the
columns before it are padding, which its tokens do not see.

Shapes: B rows, R rows that are taken from them, S new positions, T columns so far, N heads on this rank, G = B x N,
H head width, U units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Columns:
    """Where rows lie: `size` columns at most, tokens from `first_B` on (int64; None: from the first column on). All
    layers share it, and what they would compute alike.
    """

    def __init__(self, size: int, first_B: Tensor | None = None) -> None:
        self.size, self.first_B = size, first_B
        self._known: dict[str, tuple[object, Tensor]] = {}

    def once(self, name: str, key: object, make: Callable[[], Tensor]) -> Tensor:
        """Returns what `make` gives, which is called again only for another `key`."""
        if name not in self._known or self._known[name][0] != key:
            self._known[name] = key, make()
        return self._known[name][1]

    def padding(self, positions: int, columns: int) -> Tensor | None:
        """Returns booleans [B, S, T], true where a token of the last S columns must not see a column, which is padding;
        None where there is no padding. Padding sees itself, so that its numbers stay finite.
        """
        first_B = self.first_B
        if first_B is None:
            return None

        def make() -> Tensor:
            column_T = torch.arange(columns, device=first_B.device)
            is_padding_BT = column_T < first_B[:, None]
            return is_padding_BT[:, None, :] & ~is_padding_BT[:, columns - positions :, None]

        return self.once("padding", (positions, columns), make)

    def select(self, rows_R: Tensor) -> None:
        """Keeps these rows."""
        self._known.clear()
        if self.first_B is not None:
            self.first_B = self.first_B[rows_R]


class PositionCount:
    """Counts the columns so far."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.positions = columns, 0

    def select(self, rows_R: Tensor, rows: int) -> None:
        """Rows do not differ in it."""


class KeyValueCache:
    """Keys and values of the columns so far, in buffers that hold all that there will be."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.positions = columns, 0
        self.both_GTH: Tensor | None = None  # [2, G, T, H]

    def extend(self, key_GSH: Tensor, value_GSH: Tensor) -> tuple[Tensor, Tensor]:
        """Returns those of all columns so far, these S the last of them: views of the buffers."""
        if self.both_GTH is None:
            groups, _, width = key_GSH.shape
            self.both_GTH = key_GSH.new_empty(2, groups, self.columns.size, width)
        first, self.positions = self.positions, self.positions + key_GSH.shape[1]
        assert self.positions <= self.columns.size, "the cache is full"
        self.both_GTH[0, :, first : self.positions] = key_GSH
        self.both_GTH[1, :, first : self.positions] = value_GSH
        return self.both_GTH[0, :, : self.positions], self.both_GTH[1, :, : self.positions]

    def select(self, rows_R: Tensor, rows: int) -> None:
        """Keeps those of the rows `rows_R` out of `rows`, in this order; a row may be there several times."""
        if self.both_GTH is None:
            return
        old = self.both_GTH.unflatten(1, (rows, -1))
        new = old.new_empty(2, len(rows_R), *old.shape[2:])
        new[:, :, :, : self.positions] = old[:, :, :, : self.positions].index_select(1, rows_R)
        self.both_GTH = new.flatten(1, 2)


class MemoryCache:
    """Cross attention's keys and values, which stay the same for all positions of the target."""

    def __init__(self) -> None:
        self.known: tuple[Tensor, Tensor] | None = None

    def of(self, make: Callable[[Tensor], tuple[Tensor, Tensor]], memory_TBD: Tensor) -> tuple[Tensor, Tensor]:
        if self.known is None:
            key_GTH, value_GTH = make(memory_TBD)
            self.known = key_GTH.contiguous(), value_GTH.contiguous()  # they are read at every position
        return self.known

    def select(self, rows_R: Tensor, rows: int) -> None:
        if self.known is not None:
            key_GTH, value_GTH = (x.unflatten(0, (rows, -1)).index_select(0, rows_R).flatten(0, 1) for x in self.known)
            self.known = key_GTH, value_GTH


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


@dataclass(frozen=True)
class Caches:
    """One for each layer that sees new positions, None for one that looks at one position only."""

    columns: Columns
    layers: list[Any]

    def select(self, rows_R: Tensor, rows: int, moved: bool) -> None:
        """Keeps the rows `rows_R` out of `rows`, in this order. `moved`: whether some of them now stand where a row of
        another memory was.
        """
        self.columns.select(rows_R)
        for cache in self.layers:
            if cache is not None:
                cache.select(rows_R, rows)
            if moved and isinstance(cache, BlockCache):
                cache.memory.select(rows_R, rows)
