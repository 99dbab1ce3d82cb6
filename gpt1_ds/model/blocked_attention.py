"""Attention in torch, block by block: what a CPU runs, and a GPU without Triton.

The probabilities are never held as a whole: a block is a few heads times a few rows, sized to stay in the CPU's cache,
and the backward pass computes it again.

Shapes: G = B rows x N local heads, S positions, T keys, H head width, R rows of a block.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from gpt1_ds.architecture.blocking import ATTENTION_ROWS, ATTENTION_SCORES
from gpt1_ds.model import dropout, products


def forward(
    q: Tensor, k: Tensor, v: Tensor, until_G: Tensor | None, bias_NST: Tensor | None,
    key_G: Tensor | None, second_G: Tensor | None, causal: bool, factor: float, limit: int, scale: float,
    pairs: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out [G, S, H], nothing): softmax(factor x q k' + bias) of visible keys with hashed dropout, times v."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out_GSH = torch.empty_like(q)
    for heads, rows, keys in _blocks(q, k, until_G, causal):
        weights_GRT = _probabilities(q, k, until_G, bias_NST, causal, factor, heads, rows, keys)
        if key_G is not None and second_G is not None:
            weights_GRT.mul_(_keep(key_G, second_G, heads, rows, keys, pairs, limit))
        products.batched(weights_GRT.to(v.dtype), v[heads, keys], scale, out_GSH[heads, rows])
    return out_GSH, q.new_empty(0, dtype=torch.float32)


def backward(
    grad_GSH: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _kept: Tensor, until_G: Tensor | None,
    bias_NST: Tensor | None, key_G: Tensor | None, second_G: Tensor | None, causal: bool, factor: float, limit: int,
    scale: float, pairs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and of the bias (empty without one)."""
    q, k, v, grad_GSH = q.contiguous(), k.contiguous(), v.contiguous(), grad_GSH.contiguous()
    grad_q = torch.empty_like(q)
    grad_bias = q.new_empty(0) if bias_NST is None else torch.zeros_like(bias_NST)
    many = q.shape[1] > ATTENTION_ROWS  # blocks of rows, whose gradients of keys and values add up in fp32
    blocks = _blocks(q, k, until_G, causal)
    all_written = not many and blocks[0][2].stop == k.shape[1]  # else some keys are seen by no query
    grad_k, grad_v = (
        torch.empty_like(x) if all_written else torch.zeros_like(x, dtype=torch.float32 if many else None)
        for x in (k, v)
    )
    write = Tensor.add_ if many else Tensor.copy_
    for heads, rows, keys in blocks:
        probability_GRT = _probabilities(q, k, until_G, bias_NST, causal, factor, heads, rows, keys)
        grad_GRT = products.batched(grad_GSH[heads, rows], v[heads, keys].transpose(1, 2), scale).float()
        weights_GRT = probability_GRT
        if key_G is not None and second_G is not None:
            keep_GRT = _keep(key_G, second_G, heads, rows, keys, pairs, limit)
            weights_GRT = probability_GRT * keep_GRT
            grad_GRT.mul_(keep_GRT)
        write(
            grad_v[heads, keys], products.batched(weights_GRT.to(v.dtype).transpose(1, 2), grad_GSH[heads, rows], scale)
        )
        grad_GRT = torch._softmax_backward_data(grad_GRT, probability_GRT, -1, torch.float32)
        if bias_NST is not None:
            grad_bias[:, rows, keys].index_add_(0, _heads(heads, bias_NST), grad_GRT)
        grad_scores_GRT = grad_GRT.to(q.dtype)
        products.batched(grad_scores_GRT, k[heads, keys], factor, grad_q[heads, rows])
        write(grad_k[heads, keys], products.batched(grad_scores_GRT.transpose(1, 2), q[heads, rows], factor))
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias


def _blocks(q_GSH: Tensor, k_GTH: Tensor, until_G: Tensor | None, causal: bool) -> list[tuple[slice, slice, slice]]:
    """(heads, rows, keys) of every block: as many heads as keep a block within ATTENTION_SCORES, and the keys that any
    of its queries may see.
    """
    (groups, positions, _), last, limit = q_GSH.shape, k_GTH.shape[1], ATTENTION_SCORES[q_GSH.device.type]
    until = (0 if causal else last) if until_G is None else min(int(until_G.max()), last)
    blocks = []
    for first_row in range(0, positions, ATTENTION_ROWS):
        rows = slice(first_row, min(first_row + ATTENTION_ROWS, positions))
        keys = slice(0, max(rows.stop, until) if causal else until)
        heads = max(1, limit // ((rows.stop - rows.start) * keys.stop))
        blocks += [(slice(g, min(g + heads, groups)), rows, keys) for g in range(0, groups, heads)]
    return blocks


def _probabilities(
    q: Tensor, k: Tensor, until_G: Tensor | None, bias_NST: Tensor | None, causal: bool, factor: float, heads: slice,
    rows: slice, keys: slice,
) -> Tensor:  # fmt: skip
    """fp32 [g, R, T]: the softmax of the scores of visible keys. (torch's softmax is one pass over memory; maximum,
    difference, exponential, sum and quotient apart are five, and twice as slow.)
    """
    scores_GRT = products.batched(q[heads, rows], k[heads, keys].transpose(1, 2), factor).float()
    if bias_NST is not None:
        scores_GRT += bias_NST[:, rows, keys][_heads(heads, bias_NST)]
    if until_G is None:
        if causal:
            scores_GRT[..., rows] += _future(rows.stop - rows.start, q.device)
    elif int(until_G[heads].min()) < keys.stop:
        key_T = torch.arange(keys.stop, device=q.device)
        hidden_GRT = key_T >= until_G[heads, None, None]
        if causal:
            hidden_GRT = hidden_GRT & (key_T > torch.arange(rows.start, rows.stop, device=q.device)[:, None])
        scores_GRT.masked_fill_(hidden_GRT, -math.inf)
    return torch.softmax(scores_GRT, -1)


def _heads(groups: slice, bias_NST: Tensor) -> Tensor:
    """Which head each of these (row, head) pairs is."""
    return torch.arange(groups.start, groups.stop, device=bias_NST.device) % len(bias_NST)


@lru_cache(maxsize=16)
def _future(length: int, device: torch.device) -> Tensor:
    """[R, R]: -inf where a key lies after its query, which happens in a block's last square only; 0 elsewhere."""
    return torch.full((length, length), -math.inf, device=device).triu_(1)


def _keep(key_G: Tensor, second_G: Tensor, heads: slice, rows: slice, keys: slice, pairs: int, limit: int) -> Tensor:
    """1 or 0, fp32 [g, R, T]: the hashed mask of query i and key j at counter i * pairs + j // 2, half j % 2."""
    used = (keys.stop + 1) // 2
    counter_RT = dropout.counters(0, 2 * pairs * pairs, key_G.device).view(-1, pairs)[rows, :used]
    key, second_key = key_G[heads].view(-1, 1, 1), second_G[heads].view(-1, 1, 1)
    return dropout.keep_mask(counter_RT, key, second_key, limit, torch.float32)[..., keys]
