"""Attention with the hashed dropout mask as Triton kernels, which hold no score and no mask in memory.

A tile is M queries by N keys. The forward kernel goes over a query tile's keys with a running maximum and sum (Milakov
and Gimelshein 2018; Dao et al. 2022) and keeps each query's log-sum-exp; the backward kernels
(attention_triton_backward.py) compute a tile again. No kernel adds up atomically, so every result repeats to the bit.
The mask is model/dropout.py's, computed in registers: the same elements are dropped on every layout and device.

Results are laid out as [S, G, H], so that [S, B, width] is a view of them. Arguments may have any strides, as long as
the channels of a head are contiguous.

Shapes: G = B rows x N heads of this rank (heads fastest), S queries, T keys, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpt1_ds.model.kernels.attention_tile import (
    address,
    ends,
    inside,
    keep,
    last_key,
    mask_key,
    query_tile,
    scores,
    unit,
)
from gpt1_ds.model.kernels.inputs import Drop, Scores, attention_results

WIDEST = 128  # channels of a head: wider tiles do not fit registers


@dataclass(frozen=True)
class Tile:
    """What a kernel is compiled for: queries and keys of a tile, warps of a program, loads under way at once."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2


# By size of an element and width of a head. On sm_80, sm_90 and sm_100 none spills, and all fit the shared memory of
# any GPU from 8.0 on: tools/results/kernels/. (Three TF32 products for fp32 spill.)
TILES = {
    "half": {16: Tile(64, 64), 32: Tile(64, 64), 64: Tile(64, 64), 128: Tile(64, 32, warps=8)},
    "fp32": {16: Tile(32, 32), 32: Tile(32, 32), 64: Tile(16, 16, warps=8), 128: Tile(16, 16, warps=8)},
}
BEFORE_HOPPER = {64: Tile(64, 32), 128: Tile(32, 64, warps=8)}  # for "half": products there read registers
HOPPER = (9, 0)
PRECISION = {torch.float32: "ieee", torch.bfloat16: "tf32", torch.float16: "tf32"}  # of products; read for fp32 alone
UNSPECIALISED = ("G", "heads", "S", "T", "limit", "pairs")  # numbers that need no kernel for each kind of value


def supports(width: int, dtype: torch.dtype) -> bool:
    """Whether the kernels compute heads of this width: even, 16 to 128 channels."""
    return width % 2 == 0 and 16 <= width <= WIDEST and dtype in (torch.float32, torch.bfloat16, torch.float16)


def forward(q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, wanted: Scores, drop: Drop | None) -> tuple[Tensor, Tensor]:
    """Returns softmax(factor x q k' + bias) with the mask, times v: (out [G, S, H], fp32 log-sum-exp [G, S] in units of
    log 2). The factor is above 0.
    """
    assert wanted.factor_of(q_GSH) > 0, f"scores are multiplied with {wanted.factor}"
    q, k, v = rows_of(q_GSH, k_GTH, v_GTH)
    out, lse_GS = attention_results(q)
    tile = tile_for(q)
    grid = (triton.cdiv(q.shape[1], tile.queries) * len(q),)
    numbers, options = arguments(q, k, wanted, drop, tile)
    forward_kernel[grid](q, k, v, out, lse_GS, *numbers, **options)
    return out, lse_GS


@triton.jit(do_not_specialize=UNSPECIALISED)
def forward_kernel(
    Q, K, V, OUT, LSE, UNTIL, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each query tile of a head."""
    g, first, row = query_tile(S, M)
    until = tl.load(UNTIL + g) if ROWS else 0
    end = ends(row, until, S, T, CAUSAL)
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    here = inside(first, S, M, H, W)
    q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=here, other=0.0)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, H], tl.float32)
    for start in range(0, last_key(first, until, T, M, CAUSAL), N):
        there = inside(start, T, N, H, W)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        s = scores(q, k, BIAS, g % heads, row, end, start, factor, bias_head, bias_row, N, BIASED, PRECISION)
        higher = tl.maximum(largest, tl.max(s, 1) * unit(factor, BIASED))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen no key yet
        weight = tl.exp2(s * unit(factor, BIASED) - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weight, 1)
        if DROP:
            weight = tl.where(keep(row, start, pairs, key, second, limit, N), weight, 0.0)
        out = out * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        largest = higher
    out = out * tl.where(total == 0.0, 0.0, scale / total)[:, None]
    lse = tl.where(total == 0.0, float("inf"), largest + tl.log2(total))  # so that the backward pass finds weights of 0
    tl.store(address(OUT, g, first, W, G * W, M, H), out.to(OUT.dtype.element_ty), mask=here)
    tl.store(LSE + g * S + row, lse, mask=row < S)


def rows_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same numbers, where a kernel can read them: channels side by side, k and v with the same strides."""
    if q.stride(-1) != 1:
        q = q.contiguous()
    if k.stride(-1) != 1 or k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    return q, k, v


def tile_of(dtype: torch.dtype, width: int, capability: tuple[int, int]) -> Tile:
    """The tile that all kernels work on."""
    if dtype == torch.float32:
        return TILES["fp32"][triton.next_power_of_2(width)]
    tiles = TILES["half"] if capability >= HOPPER else TILES["half"] | BEFORE_HOPPER
    return tiles[triton.next_power_of_2(width)]


def tile_for(q_GSH: Tensor) -> Tile:
    """That of this tensor's device; in the interpreter, which has none, Hopper's."""
    capability = torch.cuda.get_device_capability(q_GSH.device) if q_GSH.is_cuda else HOPPER
    return tile_of(q_GSH.dtype, q_GSH.shape[2], capability)


def arguments(
    q_GSH: Tensor, k_GTH: Tensor, wanted: Scores, drop: Drop | None, tile: Tile
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what every kernel is told after its own tensors: (tensors and numbers, what it is compiled for)."""
    nothing = q_GSH  # never read
    until, bias_NST, factor = wanted.until_G, wanted.bias_NST, wanted.factor_of(q_GSH)
    mask = (drop.key_G, drop.second_G) if drop else (nothing, nothing)
    values = (drop.limit, drop.scale, drop.pairs) if drop else (0, 1.0, 0)
    if bias_NST is not None and bias_NST.stride(-1) != 1:
        bias_NST = bias_NST.contiguous()
    biased = (nothing, 1, 0, 0) if bias_NST is None else (bias_NST, len(bias_NST), *bias_NST.stride()[:2])
    bias, heads, *bias_strides = biased
    sizes = (len(q_GSH), heads, q_GSH.shape[1], k_GTH.shape[1])
    until = nothing if until is None else until
    numbers = (until, *mask, bias, *sizes, factor, *values, *q_GSH.stride()[:2], *k_GTH.stride()[:2], *bias_strides)
    return numbers, {
        "M": tile.queries,
        "N": tile.keys,
        "H": triton.next_power_of_2(q_GSH.shape[2]),
        "W": q_GSH.shape[2],
        "CAUSAL": wanted.causal,
        "ROWS": wanted.until_G is not None,
        "DROP": drop is not None,
        "BIASED": bias_NST is not None,
        "PRECISION": PRECISION[q_GSH.dtype],
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
