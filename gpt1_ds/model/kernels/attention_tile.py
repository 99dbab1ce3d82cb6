"""What the attention kernels have in common: a tile of queries and keys, its scores, and its dropout mask.

Shapes: M queries and N keys of a tile, H channels (a power of 2, of which the first W are there), G heads of all rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

COUNTER = tl.constexpr(0x9E3779B1)  # of model/dropout.py, like the factors of its mixing
MIX_1, MIX_2 = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)
SIGNS = tl.constexpr(0x80008000)  # of the two halves, which model/dropout.py compares as signed numbers
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def query_tile(S, M: tl.constexpr):
    """(head, first query, queries int32 [M]) of this program, one for each query tile of a head; tiles that see most
    keys begin first.
    """
    tiles = tl.cdiv(S, M)
    g = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * M
    return g, first, first + tl.arange(0, M)


@triton.jit
def address(P, g, first, head_stride, row_stride, R: tl.constexpr, H: tl.constexpr):
    """Pointers [R, H] to rows `first` .. `first` + R - 1 of head `g`."""
    start = P + g * head_stride + tl.cast(first, tl.int64) * row_stride
    return start + (tl.arange(0, R).to(tl.int64) * row_stride)[:, None] + tl.arange(0, H)[None, :]


@triton.jit
def inside(first, count, R: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Which elements of such a tile exist: [R, 1], or [R, H] where the width is no power of 2."""
    there = (first + tl.arange(0, R) < count)[:, None]
    if W < H:
        there = there & (tl.arange(0, H) < W)[None, :]
    return there


@triton.jit
def mask_key(P, g, DROP: tl.constexpr):
    return tl.load(P + g).to(tl.uint32, bitcast=True) if DROP else 0


@triton.jit
def keep(row, start, pairs, key, second, limit, N: tl.constexpr):
    """Whether each element of a tile is kept: queries `row` int32 [M], keys `start` .. `start` + N - 1. Two neighbours
    share one hash.
    """
    pair = start // 2 + tl.arange(0, N // 2)
    bits = (row * pairs).to(tl.uint32)[:, None] * COUNTER + key + pair.to(tl.uint32)[None, :] * COUNTER
    bits = ((bits ^ (bits >> 16)) * MIX_1) ^ second
    bits = (bits ^ (bits >> 13)) * MIX_2
    bits = bits ^ (bits >> 16) ^ SIGNS
    halves = tl.join(bits & 0xFFFF, bits >> 16)  # numbers, because booleans would be packed into bytes
    return tl.reshape(halves, [bits.shape[0], N]) >= limit


@triton.jit
def ends(row, until, S, T, CAUSAL: tl.constexpr):
    """int32 [M]: each query sees the keys before its end."""
    end = tl.zeros_like(row) + until
    if CAUSAL:
        end = tl.maximum(end, row + 1)
    return tl.where(row < S, tl.minimum(end, T), 0)


@triton.jit
def last_key(first, until, T, M: tl.constexpr, CAUSAL: tl.constexpr):
    """Where the keys end that any of the queries `first` .. `first` + M - 1 sees."""
    end = tl.minimum(until, T)
    if CAUSAL:
        end = tl.maximum(end, tl.minimum(first + M, T))
    return end


@triton.jit
def scores(
    q, k, BIAS, n, row, end, start, factor, bias_head, bias_row,
    N: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """fp32 [M, N]: in units of log 2 once multiplied with `unit`, -inf where a key is not visible."""
    column = start + tl.arange(0, N)
    seen = column[None, :] < end[:, None]
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if BIASED:
        at = BIAS + n * bias_head + row.to(tl.int64)[:, None] * bias_row + column[None, :]
        s = s * (factor * LOG2_E) + tl.load(at, mask=seen, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(seen, s, float("-inf"))


@triton.jit
def unit(factor, BIASED: tl.constexpr):
    """What `scores` are multiplied with when they are used, for then it costs nothing."""
    return 1.0 if BIASED else factor * LOG2_E
