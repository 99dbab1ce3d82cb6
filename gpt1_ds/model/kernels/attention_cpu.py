"""Attention in torch, block by block: what a CPU runs, and a GPU without Triton.

The probabilities are never held as a whole: a block is a few heads times a few rows, sized to stay in the CPU's cache,
and the backward pass computes it again.

Shapes: G = B rows x N local heads, S positions, T keys, H head width, g heads and R rows of a block.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gpt1_ds.architecture.blocking import ATTENTION_ROWS, ATTENTION_SCORES
from gpt1_ds.model import dropout, products
from gpt1_ds.model.kernels.inputs import Drop, Scores


class Block(NamedTuple):
    """The scores that are computed at once. `keys` are the keys that any of the queries may see."""

    heads: slice
    rows: slice
    keys: slice


def forward(q: Tensor, k: Tensor, v: Tensor, scores: Scores, drop: Drop | None) -> Tensor:
    """Returns out [G, S, H]: softmax(factor x q k' + bias) of visible keys with hashed dropout, times v."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out_GSH = torch.empty_like(q)
    scale = 1.0 if drop is None else drop.scale
    for block in _blocks(q, k, scores):
        weights_gRT = _probabilities(q, k, scores, block)
        if drop is not None:
            weights_gRT.mul_(_keep(drop, block))
        values = v[block.heads, block.keys]
        products.batched(weights_gRT.to(v.dtype), values, scale, out_GSH[block.heads, block.rows])
    return out_GSH


def backward(
    grad_GSH: Tensor, q: Tensor, k: Tensor, v: Tensor, scores: Scores, drop: Drop | None, gradients: tuple[Tensor, ...]
) -> Tensor:
    """Writes the `gradients` of q, k and v. Returns that of the bias (empty without one)."""
    q, k, v, grad_GSH = q.contiguous(), k.contiguous(), v.contiguous(), grad_GSH.contiguous()
    factor, scale, bias_NST = scores.factor_of(q), 1.0 if drop is None else drop.scale, scores.bias_NST
    grad_q = torch.empty_like(q)
    grad_bias = q.new_empty(0) if bias_NST is None else torch.zeros_like(bias_NST)
    many = q.shape[1] > ATTENTION_ROWS  # blocks of rows, whose gradients of keys and values add up in fp32
    blocks = _blocks(q, k, scores)
    all_written = not many and blocks[0].keys.stop == k.shape[1]  # else some keys are seen by no query
    grad_k, grad_v = (
        torch.empty_like(x) if all_written else torch.zeros_like(x, dtype=torch.float32 if many else None)
        for x in (k, v)
    )
    write = Tensor.add_ if many else Tensor.copy_
    for block in blocks:
        heads, rows, keys = block
        probability_gRT = _probabilities(q, k, scores, block)
        grad_gRT = products.batched(grad_GSH[heads, rows], v[heads, keys].transpose(1, 2), scale).float()
        weights_gRT = probability_gRT
        if drop is not None:
            keep_gRT = _keep(drop, block)
            weights_gRT = probability_gRT * keep_gRT
            grad_gRT.mul_(keep_gRT)
        write(
            grad_v[heads, keys], products.batched(weights_gRT.to(v.dtype).transpose(1, 2), grad_GSH[heads, rows], scale)
        )
        grad_gRT = torch._softmax_backward_data(grad_gRT, probability_gRT, -1, torch.float32)
        if bias_NST is not None:
            grad_bias[:, rows, keys].index_add_(0, _heads(heads, bias_NST), grad_gRT)
        grad_scores_gRT = grad_gRT.to(q.dtype)
        products.batched(grad_scores_gRT, k[heads, keys], factor, grad_q[heads, rows])
        write(grad_k[heads, keys], products.batched(grad_scores_gRT.transpose(1, 2), q[heads, rows], factor))
    for gradient, found in zip(gradients, (grad_q, grad_k, grad_v), strict=True):
        gradient.copy_(found)
    return grad_bias


def _blocks(q_GSH: Tensor, k_GTH: Tensor, scores: Scores) -> list[Block]:
    """Returns blocks of as many heads as keep one within ATTENTION_SCORES."""
    (groups, positions, _), last, limit = q_GSH.shape, k_GTH.shape[1], ATTENTION_SCORES[q_GSH.device.type]
    until = 0 if scores.causal else last
    if scores.until_G is not None:
        until = min(int(scores.until_G.max()), last)
    blocks = []
    for first_row in range(0, positions, ATTENTION_ROWS):
        rows = slice(first_row, min(first_row + ATTENTION_ROWS, positions))
        keys = slice(0, max(rows.stop, until) if scores.causal else until)
        heads = max(1, limit // ((rows.stop - rows.start) * keys.stop))
        blocks += [Block(slice(g, min(g + heads, groups)), rows, keys) for g in range(0, groups, heads)]
    return blocks


def _probabilities(q: Tensor, k: Tensor, scores: Scores, block: Block) -> Tensor:
    """Returns fp32 [g, R, T]: the softmax of the scores of visible keys. (torch's softmax is one pass over memory;
    maximum, difference, exponential, sum and quotient apart are five, and twice as slow.)
    """
    heads, rows, keys = block
    until_G, bias_NST, bounded = scores.until_G, scores.bias_NST, scores.bounds_G2S is not None
    scores_gRT = products.batched(q[heads, rows], k[heads, keys].transpose(1, 2), scores.factor_of(q)).float()
    if bias_NST is not None:
        scores_gRT += bias_NST[:, rows, keys][_heads(heads, bias_NST)]
    if bounded or (until_G is not None and int(until_G[heads].min()) < keys.stop):
        hidden_gRT = scores.hidden(heads, rows, keys, q.device)
        probabilities_gRT = torch.softmax(scores_gRT.masked_fill_(hidden_gRT, -math.inf), -1)
        return probabilities_gRT.masked_fill_(hidden_gRT, 0.0) if bounded else probabilities_gRT  # 0 / 0 is 0
    if until_G is None and scores.causal:
        scores_gRT[..., rows] += future(rows.stop - rows.start, q.device)
    return torch.softmax(scores_gRT, -1)


def _heads(groups: slice, bias_NST: Tensor) -> Tensor:
    """Returns which head each of these (row, head) pairs is."""
    return torch.arange(groups.start, groups.stop, device=bias_NST.device) % len(bias_NST)


@lru_cache(maxsize=16)
def future(length: int, device: torch.device) -> Tensor:
    """Returns [R, R]: -inf where a key lies after its query, as in a block's last square alone; 0 elsewhere."""
    return torch.full((length, length), -math.inf, device=device).triu_(1)


def _keep(drop: Drop, block: Block) -> Tensor:
    """Returns 1 or 0, fp32 [g, R, T]: the hash of query i and key j is at counter i * pairs + j // 2, half j % 2."""
    heads, rows, keys = block
    counter_RT = dropout.grid_counters(rows, drop.pairs, (keys.stop + 1) // 2, drop.key_G.device)
    key, second_key = drop.key_G[heads].view(-1, 1, 1), drop.second_G[heads].view(-1, 1, 1)
    return dropout.keep_mask(counter_RT, key, second_key, drop.limit, torch.float32)[..., keys]
