"""What a GPU computes in one kernel where torch would take several, as operations of torch's dispatcher: a compiler
puts them into its graph unopened. Triton kernels where they can run, else torch.

    bias_gelu       gelu(x + bias)
    sum_and_norm    the sum x + dropout(y), and its LayerNorm

Shapes: S positions, B rows, D width; F features, all other axes are rows; P programs of a kernel, each with its part of
the gradients of weight and bias.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from gpt1_ds.model import dropout, kernels

GELU_PARTS = 64
NORM_PARTS = 528  # four programs to each multiprocessor of an H100: fewer cannot keep its memory busy


def bias_gelu(x_F: Tensor, bias_F: Tensor, tanh: bool) -> Tensor:
    """[..., F]; by tanh, or by the error function."""
    return torch.ops.gpt1_ds.bias_gelu(x_F, bias_F, tanh)  # type: ignore[no-any-return]


def sum_and_norm(
    x_SBD: Tensor, y_SBD: Tensor, weight_D: Tensor, bias_D: Tensor,
    key_B: Tensor | None, second_B: Tensor | None, first: int, limit: int, scale: float, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(sum, LayerNorm), both [S, B, D]. Keys, limit and scale are the mask's; `first` is the position of x[0]."""
    arguments = (x_SBD, y_SBD, weight_D, bias_D, key_B, second_B, first, limit, scale, eps)
    out_SBD, sum_SBD, _ = torch.ops.gpt1_ds.sum_and_norm(*arguments)
    return sum_SBD, out_SBD


def _kernel(name: str, x: Tensor) -> ModuleType | None:
    return importlib.import_module(f"gpt1_ds.model.kernels.{name}") if kernels.available(x.device) else None


def _define_gelu() -> None:
    library.define("gpt1_ds::bias_gelu", "(Tensor x, Tensor bias, bool tanh) -> Tensor")
    library.define("gpt1_ds::bias_gelu_backward", "(Tensor grad, Tensor x, Tensor bias, bool tanh) -> (Tensor, Tensor)")
    library.impl("gpt1_ds::bias_gelu", "cuda", _gelu)
    library.impl("gpt1_ds::bias_gelu_backward", "cuda", _gelu_backward)
    library.register_fake("gpt1_ds::bias_gelu", lambda x, bias, tanh: x.new_empty(x.shape))
    library.register_fake("gpt1_ds::bias_gelu_backward", _gelu_gradient_shapes)
    library.register_autograd("gpt1_ds::bias_gelu", _gelu_gradients, setup_context=_keep_gelu)


def _gelu(x_F: Tensor, bias_F: Tensor, tanh: bool) -> Tensor:
    if (kernel := _kernel("bias_gelu", x_F)) is None:
        return F.gelu(x_F + bias_F, approximate="tanh" if tanh else "none")
    out_F, features = x_F.new_empty(x_F.shape), x_F.shape[-1]
    kernel.forward(x_F.reshape(-1, features), bias_F, tanh, out_F.view(-1, features))
    return out_F


def _gelu_backward(grad_F: Tensor, x_F: Tensor, bias_F: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    features, (grad_x_F, parts_PF) = x_F.shape[-1], _gelu_gradient_shapes(grad_F, x_F, bias_F, tanh)
    if (kernel := _kernel("bias_gelu", x_F)) is None:
        kind = "tanh" if tanh else "none"
        grad_x_F = torch.ops.aten.gelu_backward(grad_F, x_F + bias_F, approximate=kind)
        parts_PF.zero_()[0].copy_(grad_x_F.flatten(0, -2).sum(0))
        return grad_x_F, parts_PF
    grad_RF, x_RF = (one.reshape(-1, features) for one in (grad_F, x_F))
    kernel.backward(grad_RF, x_RF, bias_F, tanh, (grad_x_F.view(-1, features), parts_PF))
    return grad_x_F, parts_PF


def _gelu_gradient_shapes(grad_F: Tensor, x_F: Tensor, bias_F: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return x_F.new_empty(x_F.shape), x_F.new_empty(GELU_PARTS, x_F.shape[-1], dtype=torch.float32)


def _keep_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_F, bias_F, ctx.tanh = inputs
    ctx.save_for_backward(x_F, bias_F)


def _gelu_gradients(ctx: Any, grad_F: Tensor) -> tuple[Tensor | None, ...]:
    x_F, bias_F = ctx.saved_tensors
    grad_x_F, parts_PF = torch.ops.gpt1_ds.bias_gelu_backward(grad_F, x_F, bias_F, ctx.tanh)
    return grad_x_F, parts_PF.sum(0).to(bias_F.dtype), None


def _define_norm() -> None:
    mask = "Tensor? key, Tensor? second, SymInt first, int limit, float scale"
    library.define(
        "gpt1_ds::sum_and_norm",
        f"(Tensor x, Tensor y, Tensor weight, Tensor bias, {mask}, float eps) -> (Tensor, Tensor, Tensor)",
    )
    library.define(
        "gpt1_ds::sum_and_norm_backward",
        f"(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor stats, Tensor weight, {mask}) -> (Tensor, Tensor, Tensor)",
    )
    library.impl("gpt1_ds::sum_and_norm", "cuda", _norm)
    library.impl("gpt1_ds::sum_and_norm_backward", "cuda", _norm_backward)
    library.register_fake("gpt1_ds::sum_and_norm", _norm_shapes)
    library.register_fake("gpt1_ds::sum_and_norm_backward", _norm_gradient_shapes)
    library.register_autograd("gpt1_ds::sum_and_norm", _norm_gradients, setup_context=_keep_norm)


def _norm_shapes(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, total = (x.new_empty(x.shape) for _ in range(2))
    return out, total, x.new_empty(2, x.shape[0] * x.shape[1], dtype=torch.float32)


def _norm_gradient_shapes(
    grad: Tensor, grad_sum: Tensor | None, total: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_y = (total.new_empty(total.shape) for _ in range(2))
    return grad_x, grad_y, total.new_empty(NORM_PARTS, 2, total.shape[2], dtype=torch.float32)


def _norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = _norm_shapes(x)
    if (kernel := _kernel("residual_norm", x)) is not None:
        kernel.forward(x.contiguous(), y.contiguous(), weight, bias, *rest, made)
        return made
    *mask, eps = rest
    total = x + _dropped(y, *mask)
    out, mean, inverse = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
    return out, total, torch.stack([mean.flatten(), inverse.flatten()]).float()


def _norm_backward(
    grad: Tensor, grad_sum: Tensor | None, total: Tensor, stats: Tensor, weight: Tensor, *mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad.contiguous()
    grad_sum = None if grad_sum is None else grad_sum.contiguous()
    made = _norm_gradient_shapes(grad, grad_sum, total)
    if (kernel := _kernel("residual_norm", grad)) is not None:
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


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _x, _y, weight, _bias, key, second, *ctx.numbers, _eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, key, second)


def _norm_gradients(
    ctx: Any, grad: Tensor | None, grad_sum: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    total, stats, weight, key, second = ctx.saved_tensors
    grad = torch.zeros_like(total) if grad is None else grad
    mask = (key, second, *ctx.numbers)
    grad_x, grad_y, parts_P2D = torch.ops.gpt1_ds.sum_and_norm_backward(grad, grad_sum, total, stats, weight, *mask)
    grad_weight, grad_bias = parts_P2D.sum(0).to(weight.dtype)
    return grad_x, grad_y, grad_weight, grad_bias, None, None, None, None, None, None


_define_gelu()
_define_norm()
