"""Attention with the hashed mask by the Triton kernels, as model/blocked_attention.py computes it in torch.

Shapes: G = B rows x N local heads, S positions, H head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.attention import Drop, Visible, supports
from gpt1_ds.model.kernels.attention_backward import backward as attention_backward

__all__ = ["backward", "forward", "shapes", "supports"]


def forward(
    q: Tensor, k: Tensor, v: Tensor, until_G: Tensor | None,
    key_G: Tensor | None, second_G: Tensor | None, limit: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out [G, S, H], log-sum-exp of each query's scores fp32 [G, S])."""
    return attention.forward(q, k, v, Visible(True, until_G), _drop(q, key_G, second_G, limit, scale), None, _factor(q))


def backward(
    grad_GSH: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse_GS: Tensor, until_G: Tensor | None,
    key_G: Tensor | None, second_G: Tensor | None, limit: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    drop = _drop(q, key_G, second_G, limit, scale)
    return attention_backward(grad_GSH, q, k, v, out, lse_GS, Visible(True, until_G), drop, None, _factor(q))[:3]


def shapes(q: Tensor) -> tuple[Tensor, Tensor]:
    """What `forward` gives, without values."""
    return attention.empty(q), q.new_empty(q.shape[:2], dtype=torch.float32)


def _drop(q: Tensor, key_G: Tensor | None, second_G: Tensor | None, limit: int, scale: float) -> Drop | None:
    if key_G is None or second_G is None:
        return None
    return Drop(key_G, second_G, limit, scale, pairs=(q.shape[1] + 1) // 2)


def _factor(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1])
