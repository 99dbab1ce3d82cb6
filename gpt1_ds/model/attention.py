"""Attention, three ways of computing the same thing.

`exact`   our own kernels, blocked on a CPU, Triton on a GPU; dropout from the hashed mask, so every layout drops the
          same probabilities
`fused`   torch's scaled_dot_product_attention with its own dropout (CUDA); same-layout resume is exact, layouts agree
          statistically
`cached`  one or a few new positions against a key/value cache (sampling; no dropout)

`exact` is one operation of torch's dispatcher, forward and backward: a compiler puts it into its graph unopened.

Key j is visible to query i if j <= i or j < until; without `until_G` attention is causal. In a bidirectional row of
length n, until = n: positions after it see the padding, but nobody reads them.

Shapes: G = B rows x N local heads, S positions, T keys, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.utils.flop_counter import register_flop_formula

from gpt1_ds.model import blocked_attention, kernels


@dataclass(frozen=True)
class Mask:
    """The hashed dropout mask of one attention call: two int32[G] keys and the 16-bit drop limit."""

    key_G: Tensor
    second_G: Tensor
    limit: int
    scale: float


def exact(q_GSH: Tensor, k_GSH: Tensor, v_GSH: Tensor, mask: Mask | None, until_G: Tensor | None = None) -> Tensor:
    """[G, S, H] with the hashed mask, or without dropout when `mask` is None; `until_G` is int32."""
    arguments = (None, None, 0, 1.0) if mask is None else (mask.key_G, mask.second_G, mask.limit, mask.scale)
    return torch.ops.gpt1_ds.attention(q_GSH, k_GSH, v_GSH, until_G, *arguments)[0]  # type: ignore[no-any-return]


def fused(
    q_GSH: Tensor,
    k_GSH: Tensor,
    v_GSH: Tensor,
    probability: float,
    seed: int = 0,
    until_G: Tensor | None = None,
) -> Tensor:
    """SDPA on [G, S, H]; its dropout draws from the device's generator, which is set to `seed` first."""
    if probability:
        device = q_GSH.device
        generators = torch.cuda.default_generators if device.type == "cuda" else [torch.default_generator]
        generators[device.index or 0].manual_seed(seed)
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GSH, v_GSH))
    visible = None if until_G is None else visible_keys(until_G, q_GSH.shape[1])
    causal = until_G is None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=probability, is_causal=causal).squeeze(
        0
    )


def visible_keys(until_G: Tensor, positions: int) -> Tensor:
    """Booleans [G, S, S]: which keys each query sees."""
    position_S = torch.arange(positions, device=until_G.device)
    return (position_S <= position_S[:, None]) | (position_S < until_G[:, None, None])


def cached(q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor) -> Tensor:
    """The last S of T positions attend to all before them and themselves; no dropout."""
    positions, keys = q_GSH.shape[1], k_GTH.shape[1]
    visible_ST = None  # a single position sees everything
    if positions > 1:
        visible_ST = torch.ones(positions, keys, dtype=torch.bool, device=q_GSH.device).tril(keys - positions)
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GTH, v_GTH))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible_ST).squeeze(0)


def _define() -> None:
    """`torch.ops.gpt1_ds.attention` and its backward pass. Its second result is kept for the way back."""
    mask = "Tensor? until, Tensor? key, Tensor? second, int limit, float scale"
    library.define("gpt1_ds::attention", f"(Tensor q, Tensor k, Tensor v, {mask}) -> (Tensor, Tensor)")
    library.define(
        "gpt1_ds::attention_backward",
        f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor kept, {mask}) -> (Tensor, Tensor, Tensor)",
    )
    library.impl("gpt1_ds::attention", "cpu", blocked_attention.forward)
    library.impl("gpt1_ds::attention_backward", "cpu", blocked_attention.backward)
    library.impl("gpt1_ds::attention", "cuda", _forward_on_gpu)
    library.impl("gpt1_ds::attention_backward", "cuda", _backward_on_gpu)
    library.register_fake("gpt1_ds::attention", _shapes)
    library.register_fake("gpt1_ds::attention_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::attention", _gradients, setup_context=_keep_inputs)
    register_flop_formula(torch.ops.gpt1_ds.attention)(partial(_flops, 2))
    register_flop_formula(torch.ops.gpt1_ds.attention_backward)(partial(_flops, 5))  # the scores again, four gradients


def _forward_on_gpu(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return (_kernels(q) or blocked_attention).forward(q, *rest)  # type: ignore[no-any-return]


def _backward_on_gpu(grad: Tensor, q: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (_kernels(q) or blocked_attention).backward(grad, q, *rest)  # type: ignore[no-any-return]


def _kernels(q: Tensor) -> ModuleType | None:
    """The Triton kernels, where they can compute this attention."""
    if not kernels.available(q.device):
        return None
    from gpt1_ds.model.kernels import causal_attention

    return causal_attention if causal_attention.supports(q.shape[-1], q.dtype) else None


def _shapes(q: Tensor, k: Tensor, v: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    if found := _kernels(q):
        return found.shapes(q)  # type: ignore[no-any-return]
    return q.new_empty(q.shape), q.new_empty(0, dtype=torch.float32)


def _gradient_shapes(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(_shapes(x, x, x)[0] for x in (q, k, v))


def _flops(products: int, q_GSH: tuple[int, int, int], *_: Any, **__: Any) -> int:
    """As torch's counter counts its own causal attention: the full square of every product."""
    heads, positions, width = q_GSH
    return products * 2 * heads * positions * positions * width


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, until_G, key_G, second_G, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, until_G, key_G, second_G)


def _gradients(ctx: Any, grad_GSH: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.gpt1_ds.attention_backward(grad_GSH, *ctx.saved_tensors, *ctx.numbers)
    return *gradients, None, None, None, None, None


_define()
