"""Attention, three ways of computing the same thing.

`exact`   our own kernels, blocked on a CPU, Triton on a GPU; dropout from the hashed mask, so every layout drops the
          same probabilities
`fused`   torch's scaled_dot_product_attention with its own dropout (CUDA); same-layout resume is exact, layouts agree
          statistically
`cached`  one or a few new positions against a key/value cache (sampling; no dropout)

`exact` is one operation of torch's dispatcher, forward and backward: a compiler puts it into its graph unopened.

Key j is visible to query i if j < until or, where `causal`, if j <= i. Without `until_G` all keys are visible, or where
`causal` no others. In a bidirectional row of length n, until = n: positions after it see the padding, but nobody reads
them. Cross attention is not causal, and its until is the length of the source.

Shapes: G = B rows x N local heads, S positions, T keys, H head width.
"""

from __future__ import annotations

import math
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
    """The hashed dropout mask of one attention call: two int32[G] keys, the 16-bit drop limit, and counters of a query,
    one for each pair of keys: half the model's context, not half of T, because layouts pad a batch differently.
    """

    key_G: Tensor
    second_G: Tensor
    limit: int
    scale: float
    pairs: int


@dataclass(frozen=True)
class Scores:
    """Which keys a query sees, and its scores of them: factor x q k' + bias."""

    factor: float | None = None  # 1 / sqrt(H)
    until_G: Tensor | None = None  # int32
    causal: bool = True
    bias_NST: Tensor | None = None  # fp32, of each head, for all rows

    def factor_of(self, q_GSH: Tensor) -> float:
        return 1.0 / math.sqrt(q_GSH.shape[-1]) if self.factor is None else self.factor

    def visible(self, positions: int, keys: int, device: torch.device) -> Tensor | None:
        """Booleans [G, S, T] or [S, T], or None where all keys are visible; the S positions are the last ones."""
        key_T = torch.arange(keys, device=device)
        before_ST = key_T <= torch.arange(keys - positions, keys, device=device)[:, None]
        if self.until_G is None:
            return before_ST if self.causal else None
        until_GST = (key_T < self.until_G[:, None, None]).expand(-1, positions, -1)
        return until_GST | before_ST if self.causal else until_GST


CAUSAL = Scores()


def exact(q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, mask: Mask | None, scores: Scores = CAUSAL) -> Tensor:
    """[G, S, H] with the hashed mask, or without dropout when `mask` is None."""
    key_G, second_G, *drop = (
        (None, None, 0, 1.0, 0) if mask is None else (mask.key_G, mask.second_G, mask.limit, mask.scale, mask.pairs)
    )
    seen = (scores.until_G, scores.bias_NST, key_G, second_G, scores.causal, scores.factor_of(q_GSH))
    return torch.ops.gpt1_ds.attention(q_GSH, k_GTH, v_GTH, *seen, *drop)[0]  # type: ignore[no-any-return]


def fused(
    q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, probability: float, scores: Scores = CAUSAL, seed: int = 0
) -> Tensor:
    """SDPA on [G, S, H]; its dropout draws from the device's generator, which is set to `seed` first. No bias."""
    if probability:
        device = q_GSH.device
        generators = torch.cuda.default_generators if device.type == "cuda" else [torch.default_generator]
        generators[device.index or 0].manual_seed(seed)
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GTH, v_GTH))
    causal = scores.causal and scores.until_G is None
    visible = None if causal else scores.visible(q_GSH.shape[1], k_GTH.shape[1], q_GSH.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, dropout_p=probability, is_causal=causal, scale=scores.factor_of(q_GSH)
    ).squeeze(0)


def cached(q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, scores: Scores = CAUSAL) -> Tensor:
    """The last S of T positions attend to what they see; no dropout. The bias is of these positions, [N, S, T]."""
    (groups, positions, _), keys = q_GSH.shape, k_GTH.shape[1]
    mask = None  # a single position sees everything before it
    if positions > 1 or scores.until_G is not None:
        mask = scores.visible(positions, keys, q_GSH.device)
    if scores.bias_NST is not None:
        bias_GST = scores.bias_NST.repeat(groups // len(scores.bias_NST), 1, 1)
        mask = (bias_GST if mask is None else bias_GST.masked_fill(~mask, -math.inf)).to(q_GSH.dtype)
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GTH, v_GTH))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scores.factor_of(q_GSH)).squeeze(0)


def _define() -> None:
    """`torch.ops.gpt1_ds.attention` and its backward pass. Its second result is kept for the way back."""
    rest = "Tensor? until, Tensor? bias, Tensor? key, Tensor? second, bool causal, float factor, "
    rest += "int limit, float scale, int pairs"
    library.define("gpt1_ds::attention", f"(Tensor q, Tensor k, Tensor v, {rest}) -> (Tensor, Tensor)")
    library.define(
        "gpt1_ds::attention_backward",
        f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor kept, {rest}) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
    )
    library.impl("gpt1_ds::attention", "cpu", blocked_attention.forward)
    library.impl("gpt1_ds::attention_backward", "cpu", blocked_attention.backward)
    library.impl("gpt1_ds::attention", "cuda", _forward_on_gpu)
    library.impl("gpt1_ds::attention_backward", "cuda", _backward_on_gpu)
    library.register_fake("gpt1_ds::attention", _shapes)
    library.register_fake("gpt1_ds::attention_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::attention", _gradients, setup_context=_keep_inputs)
    register_flop_formula(torch.ops.gpt1_ds.attention)(partial(_flops, 2))
    register_flop_formula(torch.ops.gpt1_ds.attention_backward)(_backward_flops)


def _forward_on_gpu(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    if (found := _kernels(q)) is not None:
        return found.forward(q, *rest)  # type: ignore[no-any-return]
    out, unread = kernels.attention_results(q)
    return out.copy_(blocked_attention.forward(q, *rest)[0]), unread


def _backward_on_gpu(grad: Tensor, q: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    if (found := _kernels(q)) is not None:
        return found.backward(grad, q, *rest)  # type: ignore[no-any-return]
    *gradients, of_bias = blocked_attention.backward(grad, q, *rest)
    return *(kernels.empty_heads(one).copy_(one) for one in gradients), of_bias


def _kernels(q: Tensor) -> ModuleType | None:
    """The Triton kernels, where they can compute this attention."""
    if not kernels.available(q.device):
        return None
    from gpt1_ds.model.kernels import causal_attention

    return causal_attention if causal_attention.supports(q.shape[-1], q.dtype) else None


def _shapes(q: Tensor, k: Tensor, v: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    if q.is_cuda:
        return kernels.attention_results(q)
    return q.new_empty(q.shape), q.new_empty(0, dtype=torch.float32)


def _gradient_shapes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Tensor, until: Tensor | None,
    bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    of_bias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return (*(_shapes(x, x, x)[0] for x in (q, k, v)), of_bias)


def _flops(products: int, q_GSH: tuple[int, int, int], k_GTH: tuple[int, int, int], *_: Any, **__: Any) -> int:
    """As torch's counter counts its own causal attention: the full square of every product."""
    heads, positions, width = q_GSH
    return products * 2 * heads * positions * k_GTH[1] * width


def _backward_flops(_grad: tuple[int, ...], *shapes: Any, **__: Any) -> int:
    """The scores again, and four gradients."""
    return _flops(5, *shapes)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, until_G, bias_NST, key_G, second_G, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, until_G, bias_NST, key_G, second_G)
    ctx.biased = bias_NST is not None


def _gradients(ctx: Any, grad_GSH: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *gradients, of_bias = torch.ops.gpt1_ds.attention_backward(grad_GSH, *ctx.saved_tensors, *ctx.numbers)
    return *gradients, None, of_bias if ctx.biased else None, *(None,) * 7


_define()
