"""Attention, three ways of computing the same thing.

`exact`   our own kernels: blocks on a CPU (attention_cpu.py), Triton on a GPU (attention_triton.py); dropout from the
          hashed mask, so every layout drops the same probabilities
`fused`   torch's scaled_dot_product_attention with its own dropout (CUDA); same-layout resume is exact, layouts agree
          statistically
`cached`  one or a few new positions against a key/value cache (sampling; no dropout)

`exact` is one operation of torch's dispatcher, forward and backward: a compiler puts it into its graph unopened. The
dispatcher knows tensors and numbers alone, so Scores and Drop are taken apart before it and put together after it.

Shapes: G = B rows x N local heads, S positions, T keys, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.utils.flop_counter import register_flop_formula

from gpt1_ds.model import kernels
from gpt1_ds.model.kernels import attention_cpu
from gpt1_ds.model.kernels.inputs import CAUSAL, Drop, Scores, attention_results, each_of, empty_gradients


def exact(q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, drop: Drop | None, scores: Scores = CAUSAL) -> Tensor:
    """Returns [G, S, H] with the hashed mask, or without dropout when `drop` is None."""
    return exact_of_parts((q_GSH[None], k_GTH[None], v_GTH[None]), drop, scores)


def exact_of_parts(parts: Sequence[Tensor], drop: Drop | None, scores: Scores = CAUSAL) -> Tensor:
    """Returns the same for q, k and v as slices of `parts`: one tensor [3, G, S, H], or [1, G, S, H] and [2, G, T, H].
    Each part has one gradient, laid out as the product before it needs it, so that nothing is copied.
    """
    return torch.ops.gpt1_ds.attention(parts, *_apart(parts[0], scores, drop))[0]  # type: ignore[no-any-return]


def fused(
    q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, probability: float, scores: Scores = CAUSAL, seed: int = 0
) -> Tensor:
    """Returns SDPA on [G, S, H]; its dropout draws from the device's generator, which is set to `seed` first. No
    bias.
    """
    if probability:
        device = q_GSH.device
        generators = torch.cuda.default_generators if device.type == "cuda" else [torch.default_generator]
        generators[device.index or 0].manual_seed(seed)
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GTH, v_GTH))
    causal = scores.causal and scores.until_G is None and scores.bounds_G2S is None
    visible = None if causal else scores.visible(q_GSH.shape[1], k_GTH.shape[1], q_GSH.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, dropout_p=probability, is_causal=causal, scale=scores.factor_of(q_GSH)
    ).squeeze(0)


def cached(
    q_GSH: Tensor,
    k_GTH: Tensor,
    v_GTH: Tensor,
    scores: Scores = CAUSAL,
    rows: int = 1,
    visible_BST: Tensor | None = None,
) -> Tensor:
    """Returns [G, S, H], where the last S of T positions attend to what they see and what is `visible`; no dropout. The
    bias is of these positions, [N, S, T].
    """
    positions, keys = q_GSH.shape[1], k_GTH.shape[1]
    mask = None  # [B or 1, N or 1, S, T]; a single position sees everything before it
    if positions > 1 or not scores.causal:
        mask = scores.visible(positions, keys, q_GSH.device)
        if mask is not None:
            mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (rows, -1))
    if visible_BST is not None:
        mask = visible_BST[:, None] if mask is None else mask & visible_BST[:, None]
    if scores.bias_NST is not None:
        bias_NST = scores.bias_NST if mask is None else scores.bias_NST.masked_fill(~mask, -math.inf)
        mask = bias_NST.to(q_GSH.dtype)
    q, k, v = (x.unflatten(0, (rows, -1)) for x in (q_GSH, k_GTH, v_GTH))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scores.factor_of(q_GSH)).flatten(0, 1)


def _define() -> None:
    """Defines `torch.ops.gpt1_ds.attention` and its backward pass. Its second result is kept for the way back."""
    rest = "Tensor? until, Tensor? bias, Tensor? bounds, Tensor? key, Tensor? second, bool causal, float factor, "
    rest += "int limit, float scale, int pairs"
    library.define("gpt1_ds::attention", f"(Tensor[] parts, {rest}) -> (Tensor, Tensor)")
    library.define(
        "gpt1_ds::attention_backward",
        f"(Tensor grad, Tensor[] parts, Tensor out, Tensor kept, {rest}) -> (Tensor[], Tensor)",
    )
    library.impl("gpt1_ds::attention", "cpu", _forward_on_cpu)
    library.impl("gpt1_ds::attention_backward", "cpu", _backward_on_cpu)
    library.impl("gpt1_ds::attention", "cuda", _forward_on_gpu)
    library.impl("gpt1_ds::attention_backward", "cuda", _backward_on_gpu)
    library.register_fake("gpt1_ds::attention", _shapes)
    library.register_fake("gpt1_ds::attention_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::attention", _gradients, setup_context=_keep_inputs)
    register_flop_formula(torch.ops.gpt1_ds.attention)(partial(_flops, 2))
    register_flop_formula(torch.ops.gpt1_ds.attention_backward)(_backward_flops)


def _apart(q: Tensor, scores: Scores, drop: Drop | None) -> tuple[Any, ...]:
    """Returns what the operation is given after its tensors, in the order of `rest` above."""
    tensors, numbers = (scores.until_G, scores.bias_NST, scores.bounds_G2S), (scores.causal, scores.factor_of(q))
    if drop is None:
        return *tensors, None, None, *numbers, 0, 1.0, 0
    return *tensors, drop.key_G, drop.second_G, *numbers, drop.limit, drop.scale, drop.pairs


def together(
    until_G: Tensor | None, bias_NST: Tensor | None, bounds_G2S: Tensor | None, key_G: Tensor | None,
    second_G: Tensor | None, causal: bool, factor: float, limit: int, scale: float, pairs: int,
) -> tuple[Scores, Drop | None]:  # fmt: skip
    """Returns what `_apart` took apart."""
    drop = None if key_G is None or second_G is None else Drop(key_G, second_G, limit, scale, pairs)
    return Scores(factor, until_G=until_G, causal=causal, bias_NST=bias_NST, bounds_G2S=bounds_G2S), drop


def _forward_on_cpu(parts: Sequence[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
    return attention_cpu.forward(*each_of(parts), *together(*rest)), parts[0].new_empty(0, dtype=torch.float32)


def _backward_on_cpu(
    grad: Tensor, parts: Sequence[Tensor], _out: Tensor, _kept: Tensor, *rest: Any
) -> tuple[list[Tensor], Tensor]:
    gradients = empty_gradients(parts)
    return gradients, attention_cpu.backward(grad, *each_of(parts), *together(*rest), each_of(gradients))


def _forward_on_gpu(parts: Sequence[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
    q, k, v = each_of(parts)
    if (kernel := _kernel(q)) is not None:
        return kernel.forward(q, k, v, *together(*rest))  # type: ignore[no-any-return]
    out, unread = attention_results(q)
    return out.copy_(attention_cpu.forward(q, k, v, *together(*rest))), unread


def _backward_on_gpu(
    grad: Tensor, parts: Sequence[Tensor], out: Tensor, kept: Tensor, *rest: Any
) -> tuple[list[Tensor], Tensor]:
    q, k, v = each_of(parts)
    if (kernel := _kernel(q)) is None:
        return _backward_on_cpu(grad, parts, out, kept, *rest)
    gradients = empty_gradients(parts)
    return gradients, kernel.backward(grad, q, k, v, out, kept, *together(*rest), each_of(gradients))


def _kernel(q: Tensor) -> ModuleType | None:
    """Returns the module of the Triton kernels where they can compute this attention."""
    kernel = kernels.module("attention_triton", q.device)
    return kernel if kernel is not None and kernel.supports(q.shape[-1], q.dtype) else None


def _shapes(parts: Sequence[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    q = parts[0][0]
    if q.is_cuda:
        return attention_results(q)
    return q.new_empty(q.shape), q.new_empty(0, dtype=torch.float32)


def _gradient_shapes(
    grad: Tensor, parts: Sequence[Tensor], out: Tensor, kept: Tensor, until: Tensor | None, bias: Tensor | None,
    *rest: Any,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    return empty_gradients(parts), grad.new_empty(0) if bias is None else bias.new_empty(bias.shape)


def _flops(products: int, parts: Sequence[tuple[int, int, int, int]], *_: Any, **__: Any) -> int:
    """Returns FLOPs as torch's counter counts its own causal attention: the full square of every product."""
    heads, positions, width = parts[0][1:]
    keys = parts[-1][2]
    return products * 2 * heads * positions * keys * width


def _backward_flops(_grad: tuple[int, ...], *shapes: Any, **__: Any) -> int:
    """Returns the FLOPs of the scores, computed again, and of four gradients."""
    return _flops(5, *shapes)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, until_G, bias_NST, bounds_G2S, key_G, second_G, *ctx.numbers = inputs
    ctx.save_for_backward(*output, until_G, bias_NST, bounds_G2S, key_G, second_G, *parts)


def _gradients(ctx: Any, grad_GSH: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    out, kept, *rest = ctx.saved_tensors
    gradients, of_bias = torch.ops.gpt1_ds.attention_backward(grad_GSH, rest[5:], out, kept, *rest[:5], *ctx.numbers)
    return gradients, None, of_bias if of_bias.numel() else None, *(None,) * 8


_define()
