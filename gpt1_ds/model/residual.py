"""Dropout of a sub-layer's output, its residual sum, and the LayerNorm that follows.

On a CPU torch does one after the other. On a GPU they are one operation of torch's dispatcher, forward and backward: a
Triton kernel where it can run, and a compiler puts it into its graph unopened.

Shapes: S positions, B rows, D width, R = S x B, P programs of the kernel.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, library

from gpt1_ds.model import dropout, kernels
from gpt1_ds.model.layers import LayerNorm

PARTS = 528  # programs of the backward pass, four to each multiprocessor of an H100: fewer cannot keep its memory busy


def sum_and_norm(
    x_SBD: Tensor, y_SBD: Tensor, norm: LayerNorm, keys_B: Tensor | None, site: Tensor, probability: float
) -> tuple[Tensor, Tensor]:
    """(x + dropout(y), its LayerNorm), both [S, B, D]; without keys nothing is dropped."""
    probability = 0.0 if keys_B is None else probability
    tensor = norm.tensor
    first = tensor.rank * y_SBD.shape[0] if tensor.sequence else 0
    if not x_SBD.is_cuda:
        if keys_B is not None:
            y_SBD = dropout.dropout(y_SBD, keys_B, site, probability, first)
        total_SBD = x_SBD + y_SBD
        return total_SBD, norm(total_SBD)
    mask: tuple[Tensor | None, Tensor | None] = (None, None)
    if probability:
        assert keys_B is not None, "without keys the probability is 0"
        key_B1, second_B1 = dropout.site_keys(keys_B, site)
        mask = key_B1.flatten(), second_B1.flatten()
    weight_D, bias_D = tensor.replicated(norm.weight), tensor.replicated(norm.bias)
    numbers = (first, dropout.threshold(probability), dropout.scale(probability), norm.eps)
    out_SBD, total_SBD, _ = torch.ops.gpt1_ds.sum_and_norm(x_SBD, y_SBD, weight_D, bias_D, *mask, *numbers)
    return total_SBD, out_SBD


def _define() -> None:
    """`torch.ops.gpt1_ds.sum_and_norm` and its backward pass. What is kept for it is the sum, its mean and its inverse
    deviation.
    """
    mask = "Tensor? key, Tensor? second, SymInt first, int limit, float scale"
    library.define(
        "gpt1_ds::sum_and_norm",
        f"(Tensor x, Tensor y, Tensor weight, Tensor bias, {mask}, float eps) -> (Tensor, Tensor, Tensor)",
    )
    library.define(
        "gpt1_ds::sum_and_norm_backward",
        f"(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor stats, Tensor weight, {mask}) -> (Tensor, Tensor, Tensor)",
    )
    library.impl("gpt1_ds::sum_and_norm", "cuda", _forward)
    library.impl("gpt1_ds::sum_and_norm_backward", "cuda", _backward)
    library.register_fake("gpt1_ds::sum_and_norm", _shapes)
    library.register_fake("gpt1_ds::sum_and_norm_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::sum_and_norm", _gradients, setup_context=_keep)


def _shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, total = (x.new_empty(x.shape) for _ in range(2))
    return out, total, x.new_empty(2, x.shape[0] * x.shape[1], dtype=torch.float32)


def _gradient_shapes(grad: Tensor, grad_sum: Tensor | None, total: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_y = (total.new_empty(total.shape) for _ in range(2))
    return grad_x, grad_y, total.new_empty(PARTS, 2, total.shape[2], dtype=torch.float32)


def _kernel(x: Tensor) -> ModuleType | None:
    if not kernels.available(x.device):
        return None
    from gpt1_ds.model.kernels import residual_norm

    return residual_norm


def _forward(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = _shapes(x)
    if (kernel := _kernel(x)) is not None:
        kernel.forward(x.contiguous(), y.contiguous(), weight, bias, *rest, made)
        return made
    *mask, eps = rest
    total = x + _dropped(y, *mask)
    out, mean, inverse = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
    return out, total, torch.stack([mean.flatten(), inverse.flatten()]).float()


def _backward(
    grad: Tensor, grad_sum: Tensor | None, total: Tensor, stats: Tensor, weight: Tensor, *mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad.contiguous()
    grad_sum = None if grad_sum is None else grad_sum.contiguous()
    made = _gradient_shapes(grad, grad_sum, total)
    if (kernel := _kernel(grad)) is not None:
        kernel.backward(grad, grad_sum, total, stats, weight, *mask, made)
        return made
    mean, inverse = (part.view(*total.shape[:2], 1) for part in stats)
    all_three = [True, True, True]
    found = torch.ops.aten.native_layer_norm_backward(
        grad, total, weight.shape, mean, inverse, weight, weight, all_three
    )
    grad_x = found[0] if grad_sum is None else found[0] + grad_sum
    made[2].zero_()[0].copy_(torch.stack(found[1:]))
    return grad_x, _dropped(grad_x, *mask), made[2]


def _dropped(y: Tensor, key: Tensor | None, second: Tensor | None, first: int, limit: int, scale: float) -> Tensor:
    """A new tensor, as results of an operation must be."""
    if key is None or second is None:
        return y.clone()
    positions, rows, channels = y.shape
    pairs = (channels + 1) // 2
    counter = dropout.counters(first * pairs, positions * pairs, y.device).view(positions, 1, pairs)
    keep = dropout.keep_mask(counter, key.view(1, rows, 1), second.view(1, rows, 1), limit, y.dtype)
    return (y * keep[..., :channels]).mul_(scale)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _x, _y, weight, _bias, key, second, *ctx.numbers, _eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, key, second)


def _gradients(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    total, stats, weight, key, second = ctx.saved_tensors
    grad = torch.zeros_like(total) if grad is None else grad
    mask = (key, second, *ctx.numbers)
    grad_x, grad_y, parts_P2D = torch.ops.gpt1_ds.sum_and_norm_backward(grad, grad_sum, total, stats, weight, *mask)
    grad_weight, grad_bias = parts_P2D.sum(0).to(weight.dtype)
    return grad_x, grad_y, grad_weight, grad_bias, None, None, None, None, None, None


_define()
