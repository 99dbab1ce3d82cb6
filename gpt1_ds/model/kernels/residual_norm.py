"""Dropout of a sub-layer's output, its residual sum and the LayerNorm of that, as one operation on a GPU: a Triton
kernel where it can run, else torch. To a compiler it is one node of its graph. (A CPU does one after the other:
model/transformer.py.)

Shapes: S positions, B rows, D width, P programs of a kernel, each with its part of the gradients of weight and bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from gpt1_ds.model import dropout, kernels
from gpt1_ds.model.kernels.inputs import RowDrop

PARTS = 528  # programs, four to each multiprocessor of an H100: fewer cannot keep its memory busy


def sum_and_norm(
    x_SBD: Tensor, y_SBD: Tensor, weight_D: Tensor, bias_D: Tensor, drop: RowDrop, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns (x + dropout(y), LayerNorm of it), both [S, B, D]."""
    mask = (drop.key_B, drop.second_B, drop.first, drop.limit, drop.scale)
    out_SBD, sum_SBD, _ = torch.ops.gpt1_ds.sum_and_norm(x_SBD, y_SBD, weight_D, bias_D, *mask, eps)
    return sum_SBD, out_SBD


def _define() -> None:
    mask = "Tensor? key, Tensor? second, SymInt first, int limit, float scale"
    library.define(
        "gpt1_ds::sum_and_norm",
        f"(Tensor x, Tensor y, Tensor weight, Tensor bias, {mask}, float eps) -> (Tensor, Tensor, Tensor)",
    )
    library.define(
        "gpt1_ds::sum_and_norm_backward",
        f"(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor stats, Tensor weight, {mask}) -> (Tensor, Tensor, Tensor)",
    )
    library.impl("gpt1_ds::sum_and_norm", "cuda", _forward_on_gpu)
    library.impl("gpt1_ds::sum_and_norm_backward", "cuda", _backward_on_gpu)
    library.register_fake("gpt1_ds::sum_and_norm", _shapes)
    library.register_fake("gpt1_ds::sum_and_norm_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::sum_and_norm", _gradients, setup_context=_keep_inputs)


def _shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, total = (x.new_empty(x.shape) for _ in range(2))
    return out, total, x.new_empty(2, x.shape[0] * x.shape[1], dtype=torch.float32)


def _gradient_shapes(grad: Tensor, grad_sum: Tensor | None, total: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_y = (total.new_empty(total.shape) for _ in range(2))
    return grad_x, grad_y, total.new_empty(PARTS, 2, total.shape[2], dtype=torch.float32)


def _forward_on_gpu(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    (*mask, eps), made = rest, _shapes(x)
    drop = RowDrop(*mask)
    if (kernel := kernels.module("residual_norm_triton", x.device)) is not None:
        kernel.forward(x.contiguous(), y.contiguous(), weight, bias, drop, eps, made)
        return made
    total = x + _dropped(y, drop)
    out, mean, inverse = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
    return out, total, torch.stack([mean.flatten(), inverse.flatten()]).float()


def _backward_on_gpu(
    grad: Tensor, grad_sum: Tensor | None, total: Tensor, stats: Tensor, weight: Tensor, *mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad, drop = grad.contiguous(), RowDrop(*mask)
    grad_sum = None if grad_sum is None else grad_sum.contiguous()
    made = _gradient_shapes(grad, grad_sum, total)
    if (kernel := kernels.module("residual_norm_triton", grad.device)) is not None:
        kernel.backward(grad, grad_sum, total, stats, weight, drop, made)
        return made
    mean, inverse = (part.view(*total.shape[:2], 1) for part in stats)
    all_three = [True, True, True]
    found = torch.ops.aten.native_layer_norm_backward(
        grad, total, weight.shape, mean, inverse, weight, weight, all_three
    )
    grad_x = found[0] if grad_sum is None else found[0] + grad_sum
    made[2].zero_()[0].copy_(torch.stack(found[1:]))
    return grad_x, _dropped(grad_x, drop), made[2]


def _dropped(y: Tensor, drop: RowDrop) -> Tensor:
    """Returns a new tensor, as results of an operation must be."""
    if drop.key_B is None or drop.second_B is None:
        return y.clone()
    positions, rows, channels = y.shape
    pairs = (channels + 1) // 2
    counter = dropout.counters(drop.first * pairs, positions * pairs, y.device).view(positions, 1, pairs)
    key, second_key = drop.key_B.view(1, rows, 1), drop.second_B.view(1, rows, 1)
    keep = dropout.keep_mask(counter, key, second_key, drop.limit, y.dtype)
    return (y * keep[..., :channels]).mul_(drop.scale)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
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
