"""A hash of a parameter's bits that does not depend on how it was cut.

The sum, modulo 2**64, of bits(row, column) * a(row) * b(column) with pseudo-random odd a and b (multilinear hashing,
Carter and Wegman 1979): each rank sums over what it holds and the ranks' sums are added. It is there to notice a wrong
slice, a swap or a flipped bit after loading on another layout, and copies that differ between ranks; against damage on
disk files carry a sha256.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.checkpoint.slices import Geometry, Slice
from gpt1_ds.checkpoint.state import slice_of
from gpt1_ds.data.windows import mix
from gpt1_ds.engine.master_weights import Fragment

_BLOCKS = {"cpu": 1 << 16, "cuda": 1 << 22}  # elements at a time: on a CPU their 64-bit copies stay in the cache


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


def hash_of(fragment: Fragment) -> Tensor:
    """int64 []: what a fragment adds to its parameter's hash."""
    info = fragment.info
    return partial_hash(fragment.master, Geometry.of(info.shape, info.dim), slice_of(fragment))


def hashes_of(fragments: list[Fragment]) -> dict[str, int]:
    """What a rank's fragments add to every parameter's hash."""
    hashes: dict[str, int] = {}
    for fragment in fragments:
        name = fragment.info.name
        hashes[name] = hashes.get(name, 0) + int(hash_of(fragment))
    return hashes


def total_hashes(parts: Iterable[dict[str, int]]) -> dict[str, str]:
    """The ranks' parts of the parameters' hashes, added; in hexadecimal digits."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return {name: f"{sums[name] % 2**64:016x}" for name in sorted(sums)}
