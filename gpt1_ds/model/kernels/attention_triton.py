"""Attention with the hashed dropout mask as Triton kernels, which hold no score and no mask in memory: the tile that
they have in common, the forward pass, and the gradients.

A tile is M queries by N keys. The forward kernel goes over a query tile's keys with a running maximum and sum (Milakov
and Gimelshein 2018; Dao et al. 2022) and keeps each query's log-sum-exp. The gradients take a kernel over query tiles
and one over key tiles; each computes its tiles again from the log-sum-exp, and adds them up in one fixed order. No
kernel adds up atomically, so every result repeats to the bit. The mask is model/dropout.py's, computed in registers:
the same elements are dropped on every layout and device.

Results are laid out as [S, G, H], so that [S, B, width] is a view of them. Arguments may have any strides, as long as
the channels of a head are contiguous.

Shapes: M queries and N keys of a tile, H channels (a power of 2, of which the first W are there), S queries, T keys, G
= B rows x N heads of this rank (heads fastest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpt1_ds.model.kernels.inputs import Drop, Scores, attention_results, empty_heads

COUNTER = tl.constexpr(0x9E3779B1)  # of model/dropout.py, like the factors of its mixing
MIX_1, MIX_2 = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)
SIGNS = tl.constexpr(0x80008000)  # of the two halves, which model/dropout.py compares as signed numbers
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def query_tile(S, M: tl.constexpr):
    """Returns (head, first query, queries int32 [M]) of this program, one for each query tile of a head; tiles that see
    most keys begin first.
    """
    tiles = tl.cdiv(S, M)
    g = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * M
    return g, first, first + tl.arange(0, M)


@triton.jit
def address(P, g, first, head_stride, row_stride, R: tl.constexpr, H: tl.constexpr):
    """Returns pointers [R, H] to rows `first` .. `first` + R - 1 of head `g`."""
    start = P + g * head_stride + tl.cast(first, tl.int64) * row_stride
    return start + (tl.arange(0, R).to(tl.int64) * row_stride)[:, None] + tl.arange(0, H)[None, :]


@triton.jit
def inside(first, count, R: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Returns which elements of such a tile exist: [R, 1], or [R, H] where the width is no power of 2."""
    result = (first + tl.arange(0, R) < count)[:, None]
    if W < H:
        result = result & (tl.arange(0, H) < W)[None, :]
    return result


@triton.jit
def mask_key(P, g, DROP: tl.constexpr):
    return tl.load(P + g).to(tl.uint32, bitcast=True) if DROP else 0


@triton.jit
def keep(row, start, pairs, key, second, limit, N: tl.constexpr):
    """Returns whether each element of a tile is kept: queries `row` int32 [M], keys `start` .. `start` + N - 1. Two
    neighbours share one hash.
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
    """Returns int32 [M]: each query sees the keys before its end."""
    end = tl.zeros_like(row) + until
    if CAUSAL:
        end = tl.maximum(end, row + 1)
    return tl.where(row < S, tl.minimum(end, T), 0)


@triton.jit
def in_document(BOUNDS, g, row, end, S, BOUNDED: tl.constexpr):
    """Returns (the first key that each query sees int32 [M], where the keys end that it sees, which is not before the
    first): those of its document, where a row holds several.
    """
    begin = tl.zeros_like(row)
    if BOUNDED:
        bounds = BOUNDS + 2 * g * S + row
        begin = tl.load(bounds, mask=row < S, other=0)
        end = tl.maximum(begin, tl.minimum(end, tl.load(bounds + S, mask=row < S, other=0)))
    return begin, end


@triton.jit
def last_key(first, until, T, M: tl.constexpr, CAUSAL: tl.constexpr):
    """Returns where the keys end that any of the queries `first` .. `first` + M - 1 sees."""
    end = tl.minimum(until, T)
    if CAUSAL:
        end = tl.maximum(end, tl.minimum(first + M, T))
    return end


@triton.jit
def scores(
    q, k, BIAS, n, row, begin, end, start, factor, bias_head, bias_row,
    N: tl.constexpr, BOUNDED: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns fp32 [M, N]: in units of log 2 once multiplied with `unit`, -inf where a key is not visible."""
    column = start + tl.arange(0, N)
    seen = column[None, :] < end[:, None]
    if BOUNDED:  # one comparison for both: what lies before the first key is a large number without a sign
        from_first = (column[None, :] - begin[:, None]).to(tl.uint32, bitcast=True)
        seen = from_first < (end - begin).to(tl.uint32, bitcast=True)[:, None]
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if BIASED:
        bias = BIAS + n * bias_head + row.to(tl.int64)[:, None] * bias_row + column[None, :]
        s = s * (factor * LOG2_E) + tl.load(bias, mask=seen, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(seen, s, float("-inf"))


@triton.jit
def unit(factor, BIASED: tl.constexpr):
    """Returns what `scores` are multiplied with when they are used, for then it costs nothing."""
    return 1.0 if BIASED else factor * LOG2_E


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
    """Returns whether the kernels compute heads of this width: even, 16 to 128 channels."""
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
    Q, K, V, OUT, LSE, UNTIL, BOUNDS, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    BOUNDED: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each query tile of a head."""
    g, first, row = query_tile(S, M)
    until = tl.load(UNTIL + g) if ROWS else 0
    begin, end = in_document(BOUNDS, g, row, ends(row, until, S, T, CAUSAL), S, BOUNDED)
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    q_inside = inside(first, S, M, H, W)
    q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=q_inside, other=0.0)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, H], tl.float32)
    low, high = 0, last_key(first, until, T, M, CAUSAL)
    if BOUNDED:
        low, high = tl.min(begin, 0) // N * N, tl.minimum(high, tl.max(end, 0))
    for start in range(low, high, N):
        k_inside = inside(start, T, N, H, W)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        s = scores(
            q, k, BIAS, g % heads, row, begin, end, start, factor, bias_head, bias_row, N, BOUNDED, BIASED, PRECISION
        )  # fmt: skip
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
    tl.store(address(OUT, g, first, W, G * W, M, H), out.to(OUT.dtype.element_ty), mask=q_inside)
    tl.store(LSE + g * S + row, lse, mask=row < S)


def rows_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the same numbers, where a kernel can read them: channels side by side, k and v with the same strides."""
    if q.stride(-1) != 1:
        q = q.contiguous()
    if k.stride(-1) != 1 or k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    return q, k, v


def tile_of(dtype: torch.dtype, width: int, capability: tuple[int, int]) -> Tile:
    """Returns the tile that all kernels work on."""
    if dtype == torch.float32:
        return TILES["fp32"][triton.next_power_of_2(width)]
    tiles = TILES["half"] if capability >= HOPPER else TILES["half"] | BEFORE_HOPPER
    return tiles[triton.next_power_of_2(width)]


def tile_for(q_GSH: Tensor) -> Tile:
    """Returns that of this tensor's device; in the interpreter, which has none, Hopper's."""
    capability = torch.cuda.get_device_capability(q_GSH.device) if q_GSH.is_cuda else HOPPER
    return tile_of(q_GSH.dtype, q_GSH.shape[2], capability)


def arguments(
    q_GSH: Tensor, k_GTH: Tensor, wanted: Scores, drop: Drop | None, tile: Tile
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what every kernel takes after its own tensors: (tensors and numbers, what it is compiled for)."""
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
    bounds = nothing if wanted.bounds_G2S is None else wanted.bounds_G2S.contiguous()
    strides = *q_GSH.stride()[:2], *k_GTH.stride()[:2], *bias_strides
    numbers = (until, bounds, *mask, bias, *sizes, factor, *values, *strides)
    return numbers, {
        "M": tile.queries,
        "N": tile.keys,
        "H": triton.next_power_of_2(q_GSH.shape[2]),
        "W": q_GSH.shape[2],
        "CAUSAL": wanted.causal,
        "ROWS": wanted.until_G is not None,
        "BOUNDED": wanted.bounds_G2S is not None,
        "DROP": drop is not None,
        "BIASED": bias_NST is not None,
        "PRECISION": PRECISION[q_GSH.dtype],
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def backward(
    grad_GSH: Tensor, q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, out_GSH: Tensor, lse_GS: Tensor, wanted: Scores,
    drop: Drop | None, gradients: tuple[Tensor, ...],
) -> Tensor:  # fmt: skip
    """Writes the `gradients` of q [G, S, H], k and v [G, T, H], which lie as inputs.empty_gradients made them. Returns
    that of the bias [N, S, T] summed over the rows (empty without one). `out` and `lse` are what
    attention_triton.forward gave for the same arguments.
    """
    q, k, v = rows_of(q_GSH, k_GTH, v_GTH)
    grad, out = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (grad_GSH, out_GSH))
    (heads, queries), keys, bias_NST = q.shape[:2], k.shape[1], wanted.bias_NST
    delta_GS = torch.empty_like(lse_GS)  # of each query: output times its gradient, less the mask's scale (Dao 2022)
    # fp32 kernels spill registers where gradients lie side by side (tools/results/kernels), so they write others
    written = gradients if q.dtype != torch.float32 else tuple(map(empty_heads, (q, k, v)))
    grad_q, grad_k, grad_v = written
    tile = tile_for(q)
    query_tiles, key_tiles = triton.cdiv(queries, tile.queries), triton.cdiv(keys, tile.keys)
    numbers, options = arguments(q, k, wanted, drop, tile)
    query_kernel[(query_tiles * heads,)](
        q, k, v, out, grad, lse_GS, delta_GS, grad_q, *numbers, PARTS=parts_of(grad_q), **options
    )
    key_kernel[(key_tiles * heads,)](
        q, k, v, grad, lse_GS, delta_GS, grad_k, grad_v, *numbers, PARTS=parts_of(grad_k), **options
    )
    if written is not gradients:
        for gradient, found in zip(gradients, written, strict=True):
            gradient.copy_(found)
    if bias_NST is None:
        return q.new_empty(0)
    grad_bias = bias_NST.new_empty(bias_NST.shape)
    tiles = query_tiles * key_tiles * len(bias_NST)
    options["num_stages"] = 1  # of four tensors, which would not fit shared memory twice
    bias_kernel[(tiles,)](q, k, v, grad, lse_GS, delta_GS, grad_bias, *numbers, **options)
    return grad_bias


def parts_of(gradient_GSH: Tensor) -> int:
    """Returns how many gradients lie side by side where this one lies."""
    return gradient_GSH.stride(0) // gradient_GSH.shape[2]


@triton.jit
def gradient_tile(
    q, k, v, grad, lse, delta, BIAS, n, row, begin, end, start, key, second, factor, limit, pairs, bias_head, bias_row,
    N: tl.constexpr, BOUNDED: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns (weights that values were summed with, gradient of the biased scores), both fp32 [M, N] and yet to be
    multiplied with the mask's scale, as `delta` is.
    """
    s = scores(q, k, BIAS, n, row, begin, end, start, factor, bias_head, bias_row, N, BOUNDED, BIASED, PRECISION)
    probability = tl.exp2(s * unit(factor, BIASED) - lse[:, None])
    grad_weight = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    weight = probability
    if DROP:
        kept = keep(row, start, pairs, key, second, limit, N)
        grad_weight = tl.where(kept, grad_weight, 0.0)
        weight = tl.where(kept, probability, 0.0)
    return weight, probability * (grad_weight - delta[:, None])


@triton.jit(do_not_specialize=UNSPECIALISED)
def query_kernel(
    Q, K, V, OUT, GRAD, LSE, DELTA, GRAD_Q, UNTIL, BOUNDS, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale,
    pairs, q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    BOUNDED: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program for each query tile of a head; writes `DELTA`, which the other kernels read."""
    g, first, row = query_tile(S, M)
    until = tl.load(UNTIL + g) if ROWS else 0
    begin, end = in_document(BOUNDS, g, row, ends(row, until, S, T, CAUSAL), S, BOUNDED)
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    q_inside = inside(first, S, M, H, W)
    q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=q_inside, other=0.0)
    grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=q_inside, other=0.0)
    out = tl.load(address(OUT, g, first, W, G * W, M, H), mask=q_inside, other=0.0)
    lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1) / scale
    tl.store(DELTA + g * S + row, delta, mask=row < S)
    grad_q = tl.zeros([M, H], tl.float32)
    low, high = 0, last_key(first, until, T, M, CAUSAL)
    if BOUNDED:
        low, high = tl.min(begin, 0) // N * N, tl.minimum(high, tl.max(end, 0))
    for start in range(low, high, N):
        k_inside = inside(start, T, N, H, W)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        _, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, g % heads, row, begin, end, start, key, second, factor, limit, pairs,
            bias_head, bias_row, N, BOUNDED, DROP, BIASED, PRECISION,
        )  # fmt: skip
        grad_q += tl.dot(grad_scores.to(k.dtype), k, input_precision=PRECISION)
    grad_q *= factor * scale
    tl.store(
        address(GRAD_Q, g, first, PARTS * W, G * PARTS * W, M, H), grad_q.to(GRAD_Q.dtype.element_ty), mask=q_inside
    )


@triton.jit(do_not_specialize=UNSPECIALISED)
def key_kernel(
    Q, K, V, GRAD, LSE, DELTA, GRAD_K, GRAD_V, UNTIL, BOUNDS, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale,
    pairs, q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    BOUNDED: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program for each key tile of a head; tiles that most queries see begin first."""
    tiles = tl.cdiv(T, N)
    g = (tl.program_id(0) // tiles).to(tl.int64)
    start = (tl.program_id(0) % tiles) * N
    until = tl.load(UNTIL + g) if ROWS else 0
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    k_inside = inside(start, T, N, H, W)
    k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
    v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
    grad_k, grad_v = tl.zeros([N, H], tl.float32), tl.zeros([N, H], tl.float32)
    begin, stop = 0, S
    if start >= until:  # no query sees these keys but, where causal, those at and after them
        begin, stop = (start // M) * M, S if CAUSAL else 0
    for first in range(begin, stop, M):
        row = first + tl.arange(0, M)
        low, end = in_document(BOUNDS, g, row, ends(row, until, S, T, CAUSAL), S, BOUNDED)
        q_inside = inside(first, S, M, H, W)
        q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=q_inside, other=0.0)
        grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=q_inside, other=0.0)
        lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))  # queries that do not exist weigh 0
        delta = tl.load(DELTA + g * S + row, mask=row < S, other=0.0)
        weight, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, g % heads, row, low, end, start, key, second, factor, limit, pairs,
            bias_head, bias_row, N, BOUNDED, DROP, BIASED, PRECISION,
        )  # fmt: skip
        grad_v += tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision=PRECISION)
        grad_k += tl.dot(tl.trans(grad_scores.to(q.dtype)), q, input_precision=PRECISION)
    grad_k, grad_v = grad_k * (factor * scale), grad_v * scale
    tl.store(
        address(GRAD_K, g, start, PARTS * W, G * PARTS * W, N, H), grad_k.to(GRAD_K.dtype.element_ty), mask=k_inside
    )
    tl.store(
        address(GRAD_V, g, start, PARTS * W, G * PARTS * W, N, H), grad_v.to(GRAD_V.dtype.element_ty), mask=k_inside
    )


@triton.jit(do_not_specialize=UNSPECIALISED)
def bias_kernel(
    Q, K, V, GRAD, LSE, DELTA, GRAD_BIAS, UNTIL, BOUNDS, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    BOUNDED: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each tile of a head's bias, which adds up all rows in their order."""
    tiles, key_tiles = tl.cdiv(S, M) * tl.cdiv(T, N), tl.cdiv(T, N)
    n = (tl.program_id(0) // tiles).to(tl.int64)
    first, start = (tl.program_id(0) % tiles) // key_tiles * M, (tl.program_id(0) % key_tiles) * N
    row, column = first + tl.arange(0, M), start + tl.arange(0, N)
    q_inside, k_inside = inside(first, S, M, H, W), inside(start, T, N, H, W)
    total = tl.zeros([M, N], tl.float32)
    for b in range(0, G // heads):
        g = b * heads + n
        end = ends(row, tl.load(UNTIL + g) if ROWS else 0, S, T, CAUSAL)
        begin, end = in_document(BOUNDS, g, row, end, S, BOUNDED)
        key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
        q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=q_inside, other=0.0)
        grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=q_inside, other=0.0)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=k_inside, other=0.0)
        lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))
        delta = tl.load(DELTA + g * S + row, mask=row < S, other=0.0)
        _, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, n, row, begin, end, start, key, second, factor, limit, pairs, bias_head,
            bias_row, N, BOUNDED, DROP, BIASED, PRECISION,
        )  # fmt: skip
        total += grad_scores
    grad_bias = GRAD_BIAS + (n * S + row.to(tl.int64)[:, None]) * T + column[None, :]
    tl.store(grad_bias, (total * scale).to(GRAD_BIAS.dtype.element_ty), mask=(row < S)[:, None] & (column < T)[None, :])
