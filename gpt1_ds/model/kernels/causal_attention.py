"""Attention with the hashed mask by the Triton kernels, as model/blocked_attention.py computes it in torch.

Shapes: G = B rows x N local heads, S positions, H head width.
"""

from __future__ import annotations

from torch import Tensor

from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.attention import Drop, Visible, supports
from gpt1_ds.model.kernels.attention_backward import backward as attention_backward

__all__ = ["backward", "forward", "supports"]


def forward(
    q: Tensor, k: Tensor, v: Tensor, until_G: Tensor | None, bias_NST: Tensor | None,
    key_G: Tensor | None, second_G: Tensor | None, causal: bool, factor: float, limit: int, scale: float,
    pairs: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out [G, S, H], log-sum-exp of each query's scores fp32 [G, S])."""
    drop = _drop(key_G, second_G, limit, scale, pairs)
    return attention.forward(q, k, v, Visible(causal, until_G), drop, bias_NST, factor)


def backward(
    grad_GSH: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse_GS: Tensor, until_G: Tensor | None,
    bias_NST: Tensor | None, key_G: Tensor | None, second_G: Tensor | None, causal: bool, factor: float, limit: int,
    scale: float, pairs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and of the bias (empty without one)."""
    drop, visible = _drop(key_G, second_G, limit, scale, pairs), Visible(causal, until_G)
    of_q, of_k, of_v, of_bias = attention_backward(grad_GSH, q, k, v, out, lse_GS, visible, drop, bias_NST, factor)
    return of_q, of_k, of_v, q.new_empty(0) if of_bias is None else of_bias


def _drop(key_G: Tensor | None, second_G: Tensor | None, limit: int, scale: float, pairs: int) -> Drop | None:
    if key_G is None or second_G is None:
        return None
    return Drop(key_G, second_G, limit, scale, pairs)
