"""The gradients of attention_triton.py: a kernel over query tiles, one over key tiles, one over a head's bias.

Each computes its tiles again from the log-sum-exp that the forward pass has kept, and adds them up in one fixed order.

Shapes: G = B rows x N heads of this rank (heads fastest), S queries, T keys, H head width.
"""

from __future__ import annotations

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
from gpt1_ds.model.kernels.attention_triton import UNSPECIALISED, arguments, rows_of, tile_for
from gpt1_ds.model.kernels.inputs import Drop, Scores, empty_heads


def backward(
    grad_GSH: Tensor, q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, out_GSH: Tensor, lse_GS: Tensor, wanted: Scores,
    drop: Drop | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of q [G, S, H], k and v [G, T, H], and of the bias [N, S, T] summed over the rows (empty
    without one). `out` and `lse` are what attention_triton.forward gave for the same arguments.
    """
    q, k, v = rows_of(q_GSH, k_GTH, v_GTH)
    grad, out = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (grad_GSH, out_GSH))
    (heads, queries), keys, bias_NST = q.shape[:2], k.shape[1], wanted.bias_NST
    delta_GS = torch.empty_like(lse_GS)  # of each query: output times its gradient, less the mask's scale (Dao 2022)
    grad_q, grad_k, grad_v = empty_heads(q), empty_heads(k), empty_heads(k)
    tile = tile_for(q)
    query_tiles, key_tiles = triton.cdiv(queries, tile.queries), triton.cdiv(keys, tile.keys)
    numbers, options = arguments(q, k, wanted, drop, tile)
    query_kernel[(query_tiles * heads,)](q, k, v, out, grad, lse_GS, delta_GS, grad_q, *numbers, **options)
    key_kernel[(key_tiles * heads,)](q, k, v, grad, lse_GS, delta_GS, grad_k, grad_v, *numbers, **options)
    if bias_NST is None:
        return grad_q, grad_k, grad_v, q.new_empty(0)
    grad_bias = bias_NST.new_empty(bias_NST.shape)
    tiles = query_tiles * key_tiles * len(bias_NST)
    options["num_stages"] = 1  # of four tensors, which would not fit shared memory twice
    bias_kernel[(tiles,)](q, k, v, grad, lse_GS, delta_GS, grad_bias, *numbers, **options)
    return grad_q, grad_k, grad_v, grad_bias


@triton.jit
def gradient_tile(
    q, k, v, grad, lse, delta, BIAS, n, row, end, start, key, second, factor, limit, pairs, bias_head, bias_row,
    N: tl.constexpr, DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(weights that values were summed with, gradient of the biased scores), both fp32 [M, N] and yet to be multiplied
    with the mask's scale, as `delta` is.
    """
    s = scores(q, k, BIAS, n, row, end, start, factor, bias_head, bias_row, N, BIASED, PRECISION)
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
    Q, K, V, OUT, GRAD, LSE, DELTA, GRAD_Q, UNTIL, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each query tile of a head; writes `DELTA`, which the other kernels read."""
    g, first, row = query_tile(S, M)
    until = tl.load(UNTIL + g) if ROWS else 0
    end = ends(row, until, S, T, CAUSAL)
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    here = inside(first, S, M, H, W)
    q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=here, other=0.0)
    grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=here, other=0.0)
    out = tl.load(address(OUT, g, first, W, G * W, M, H), mask=here, other=0.0)
    lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1) / scale
    tl.store(DELTA + g * S + row, delta, mask=row < S)
    grad_q = tl.zeros([M, H], tl.float32)
    for start in range(0, last_key(first, until, T, M, CAUSAL), N):
        there = inside(start, T, N, H, W)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        _, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, g % heads, row, end, start, key, second, factor, limit, pairs, bias_head,
            bias_row, N, DROP, BIASED, PRECISION,
        )  # fmt: skip
        grad_q += tl.dot(grad_scores.to(k.dtype), k, input_precision=PRECISION)
    grad_q *= factor * scale
    tl.store(address(GRAD_Q, g, first, W, G * W, M, H), grad_q.to(GRAD_Q.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=UNSPECIALISED)
def key_kernel(
    Q, K, V, GRAD, LSE, DELTA, GRAD_K, GRAD_V, UNTIL, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each key tile of a head; tiles that most queries see begin first."""
    tiles = tl.cdiv(T, N)
    g = (tl.program_id(0) // tiles).to(tl.int64)
    start = (tl.program_id(0) % tiles) * N
    until = tl.load(UNTIL + g) if ROWS else 0
    key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
    there = inside(start, T, N, H, W)
    k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=there, other=0.0)
    v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=there, other=0.0)
    grad_k, grad_v = tl.zeros([N, H], tl.float32), tl.zeros([N, H], tl.float32)
    begin, stop = 0, S
    if start >= until:  # no query sees these keys but, where causal, those at and after them
        begin, stop = (start // M) * M, S if CAUSAL else 0
    for first in range(begin, stop, M):
        row = first + tl.arange(0, M)
        end = ends(row, until, S, T, CAUSAL)
        here = inside(first, S, M, H, W)
        q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=here, other=0.0)
        grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=here, other=0.0)
        lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))  # queries that do not exist weigh 0
        delta = tl.load(DELTA + g * S + row, mask=row < S, other=0.0)
        weight, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, g % heads, row, end, start, key, second, factor, limit, pairs, bias_head,
            bias_row, N, DROP, BIASED, PRECISION,
        )  # fmt: skip
        grad_v += tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision=PRECISION)
        grad_k += tl.dot(tl.trans(grad_scores.to(q.dtype)), q, input_precision=PRECISION)
    grad_k, grad_v = grad_k * (factor * scale), grad_v * scale
    tl.store(address(GRAD_K, g, start, W, G * W, N, H), grad_k.to(GRAD_K.dtype.element_ty), mask=there)
    tl.store(address(GRAD_V, g, start, W, G * W, N, H), grad_v.to(GRAD_V.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=UNSPECIALISED)
def bias_kernel(
    Q, K, V, GRAD, LSE, DELTA, GRAD_BIAS, UNTIL, KEY, SECOND, BIAS, G, heads, S, T, factor, limit, scale, pairs,
    q_head, q_row, k_head, k_row, bias_head, bias_row,
    M: tl.constexpr, N: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr,
    DROP: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program for each tile of a head's bias, which adds up all rows in their order."""
    tiles, key_tiles = tl.cdiv(S, M) * tl.cdiv(T, N), tl.cdiv(T, N)
    n = (tl.program_id(0) // tiles).to(tl.int64)
    first, start = (tl.program_id(0) % tiles) // key_tiles * M, (tl.program_id(0) % key_tiles) * N
    row, column = first + tl.arange(0, M), start + tl.arange(0, N)
    here, there = inside(first, S, M, H, W), inside(start, T, N, H, W)
    found = tl.zeros([M, N], tl.float32)
    for b in range(0, G // heads):
        g = b * heads + n
        end = ends(row, tl.load(UNTIL + g) if ROWS else 0, S, T, CAUSAL)
        key, second = mask_key(KEY, g, DROP), mask_key(SECOND, g, DROP)
        q = tl.load(address(Q, g, first, q_head, q_row, M, H), mask=here, other=0.0)
        grad = tl.load(address(GRAD, g, first, W, G * W, M, H), mask=here, other=0.0)
        k = tl.load(address(K, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        v = tl.load(address(V, g, start, k_head, k_row, N, H), mask=there, other=0.0)
        lse = tl.load(LSE + g * S + row, mask=row < S, other=float("inf"))
        delta = tl.load(DELTA + g * S + row, mask=row < S, other=0.0)
        _, grad_scores = gradient_tile(
            q, k, v, grad, lse, delta, BIAS, n, row, end, start, key, second, factor, limit, pairs, bias_head, bias_row,
            N, DROP, BIASED, PRECISION,
        )  # fmt: skip
        found += grad_scores
    at = GRAD_BIAS + (n * S + row.to(tl.int64)[:, None]) * T + column[None, :]
    tl.store(at, (found * scale).to(GRAD_BIAS.dtype.element_ty), mask=(row < S)[:, None] & (column < T)[None, :])
