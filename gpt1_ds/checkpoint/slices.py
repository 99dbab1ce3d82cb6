"""Which elements of a parameter a slice holds, and how slices of one layout make up those of another.

A slice is two ranges: [start, stop) along the parameter's tensor-parallel dimension, and [offset, offset + count) of
that part flattened in row-major order. Read as three axes (outer, cut, inner), a part of width w = stop - start is
outer x w x inner; with outer == 1 (cut along the first dimension, or not at all) its elements are one run of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Read = Callable[["Slice", int, int], Tensor]  # (slice, first, count) -> 1-D elements first .. of that slice


@dataclass(frozen=True)
class Slice:
    """Elements of one parameter as one rank held them. `file` and `key` say where they lie on disk."""

    start: int
    stop: int
    offset: int
    count: int
    file: str = ""
    key: str = ""


@dataclass(frozen=True)
class Geometry:
    """A parameter's shape as (outer, cut, inner) around its tensor-parallel dimension; uncut ones have cut == 1."""

    outer: int
    cut: int
    inner: int

    @classmethod
    def of(cls, shape: Sequence[int], dim: int | None) -> Geometry:
        if dim is None:
            return cls(1, 1, math.prod(shape))
        return cls(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))

    @property
    def elements(self) -> int:
        return self.outer * self.cut * self.inner


def assemble(geometry: Geometry, want: Slice, have: Sequence[Slice], read: Read) -> Tensor:
    """1-D fp32 tensor of the `want.count` elements of `want`, from whichever slices of `have` hold them.

    Raises LookupError when an element is in none of them.
    """
    if geometry.outer == 1:  # the parameter is one run of elements, in which a slice begins at its range and offset
        placed = [(part.start * geometry.inner + part.offset, part) for part in have]
        return _flat(placed, want.start * geometry.inner + want.offset, want.count, read)
    row = (want.stop - want.start) * geometry.inner
    first, last = want.offset // row, -(-(want.offset + want.count) // row)
    block = torch.empty(last - first, row)
    filled = 0
    by_range: dict[tuple[int, int], list[tuple[int, Slice]]] = {}
    for part in have:
        by_range.setdefault((part.start, part.stop), []).append((part.offset, part))
    for (start, stop), placed in by_range.items():
        low, high = max(start, want.start), min(stop, want.stop)
        if low >= high:
            continue
        width = (stop - start) * geometry.inner
        source = _flat(placed, first * width, (last - first) * width, read).view(last - first, width)
        columns = slice((low - start) * geometry.inner, (high - start) * geometry.inner)
        block[:, (low - want.start) * geometry.inner : (high - want.start) * geometry.inner] = source[:, columns]
        filled += high - low
    if filled != want.stop - want.start:
        raise LookupError(f"columns {want.start}:{want.stop} are not all there")
    return block.view(-1)[want.offset - first * row : want.offset - first * row + want.count]


def _flat(placed: Sequence[tuple[int, Slice]], first: int, count: int, read: Read) -> Tensor:
    """Elements first .. first + count - 1 of the run in which each slice begins at the position beside it."""
    out = torch.empty(count)
    reached = first
    for at, part in sorted(placed, key=lambda pair: pair[0]):
        low, high = max(reached, at), min(first + count, at + part.count)
        if low >= high:
            continue
        if low > reached:
            break
        out[low - first : high - first] = read(part, low - at, high - low)
        reached = high
    if reached < first + count:
        raise LookupError(f"elements {reached}:{first + count} are not there")
    return out
