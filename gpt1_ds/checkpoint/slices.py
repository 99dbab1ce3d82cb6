"""Which elements of a parameter a slice holds, and how slices of one layout make up those of another.

A slice is two ranges: [start, stop) along the parameter's tensor-parallel dimension, and [offset, offset + count) of
that part flattened in row-major order. Read as three axes (outer, cut, inner), a part of width w = stop - start is
outer x w x inner; with outer == 1 (cut along the first dimension, or not at all) its elements are one run of the whole.

A parameter's hash does not depend on how it was cut. It is the sum, modulo 2**64, of bits(row, column) * a(row) *
b(column) with pseudo-random odd a and b (multilinear hashing, Carter and Wegman 1979): each rank sums over what it
holds and the ranks' sums are added. It is there to notice a wrong slice, a swap or a flipped bit after loading on
another layout, and copies that differ between ranks; against damage on disk files carry a sha256.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.data.windows import mix

_BLOCKS = {"cpu": 1 << 16, "cuda": 1 << 22}  # elements at a time: on a CPU their 64-bit copies stay in the cache
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


def partial_hash(values: Tensor, geometry: Geometry, part: Slice) -> Tensor:
    """Part of a parameter's hash that the elements of one slice contribute, int64 [] on their device; `values` is 1-D,
    of 32 or 16 bits an element.
    """
    bits = values.detach().contiguous().view(torch.int32 if values.element_size() == 4 else torch.int16)
    rows = geometry.cut if geometry.outer == 1 else geometry.outer
    columns = geometry.inner if geometry.outer == 1 else geometry.cut * geometry.inner
    first_row, first_column = (part.start, 0) if geometry.outer == 1 else (0, part.start * geometry.inner)
    width = columns if geometry.outer == 1 else (part.stop - part.start) * geometry.inner
    a = _odd(rows, 1, bits.device)[first_row:]
    b = _odd(columns, 2, bits.device)[first_column : first_column + width]
    row, column = divmod(part.offset, width)
    head = min(part.count, (width - column) % width)  # up to the next whole row
    body = (part.count - head) // width
    total = _sum(bits[:head].view(1, -1), a[row : row + 1], b[column : column + head])
    row += column > 0
    total += _sum(bits[head : head + body * width].view(body, width), a[row:], b)
    tail = bits[head + body * width : part.count]
    return total + _sum(tail.view(1, -1), a[row + body : row + body + 1], b[: len(tail)])


def _sum(bits: Tensor, a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    rows, columns = bits.shape
    step = max(1, _BLOCKS[bits.device.type] // max(1, columns))
    for row in range(0, rows if columns else 0, step):
        products = bits[row : row + step].to(torch.int64).mul_(b)
        total += (products.sum(1) * a[row : row + len(products)]).sum()
    return total


@cache
def _odd(count: int, stream: int, device: torch.device) -> Tensor:
    """int64 [count]: pseudo-random odd factors."""
    factors = mix(np.arange(count, dtype=np.uint64) + np.uint64(stream << 48)) | np.uint64(1)
    return torch.from_numpy(factors.view(np.int64)).to(device)
