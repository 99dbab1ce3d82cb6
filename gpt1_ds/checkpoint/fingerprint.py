"""A hash of a parameter's fp32 values that does not depend on how it was cut.

The sum, modulo 2**64, of a hash of every (index, bits): each rank sums over what it holds and the ranks' sums are
added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpt1_ds.checkpoint.slices import Geometry, Slice, element_index

_FACTORS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # splitmix64's constants as signed integers


def partial_hash(values: Tensor, geometry: Geometry, part: Slice) -> int:
    """Signed 64-bit part of a parameter's hash that the elements of one slice contribute."""
    total = torch.zeros((), dtype=torch.int64)
    bits = values.detach().cpu().contiguous().view(torch.int32)
    for first, index in element_index(geometry, part):
        state = index.mul_(_FACTORS[0]).add_(bits[first : first + len(index)])
        state = (state ^ ((state >> 30) & ((1 << 34) - 1))).mul_(_FACTORS[1])
        state = (state ^ ((state >> 27) & ((1 << 37) - 1))).mul_(_FACTORS[2])
        total += state.sum()
    return int(total)


def as_text(value: int) -> str:
    return f"{value % 2**64:016x}"
