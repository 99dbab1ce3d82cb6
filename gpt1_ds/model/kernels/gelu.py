"""A linear layer's bias and the activation after it. GELU (Hendrycks & Gimpel 2016) is one operation with the bias:

    gelu        u P, slope P + u p    with P and p the normal distribution and its density
    gelu_tanh   u / 2 (1 + tanh(sqrt(2 / pi) (u + c u^3))) = u sigmoid(u w)
                slope s + u s (1 - s) (3 w - 2 k)    with k = 2 sqrt(2 / pi), c = 0.044715, w = k + k c u^2,
                                                     s = sigmoid(u w)

A CPU computes a sigmoid in a quarter of the time of a tanh. The slope is made along with the value, while a block
of the input is in the cache, and kept in its place: the backward pass is one multiplication. On a GPU each
pass is one kernel, as an operation of torch's dispatcher, which a compiler puts into its graph unopened.

Shapes: F features; all other axes are rows, R of them in a block; P programs of a kernel, each with its part of the
gradient of the bias.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, library

from gpt1_ds.model import kernels

BLOCK_ELEMENTS = 1 << 19  # in work at once, on a CPU
PARTS = 64  # programs that add up the gradient of the bias, on a GPU
_CUBE = 0.044715
_RATE = 2 * math.sqrt(2 / math.pi)


Kind = Literal["gelu_tanh", "gelu"]


def bias_activation(x_F: Tensor, bias_F: Tensor, kind: Kind) -> Tensor:
    """Returns gelu(x + bias), of x's shape [..., F] and type, computed in fp32."""
    if x_F.is_cuda:
        return torch.ops.gpt1_ds.bias_gelu(x_F, bias_F, kind == "gelu_tanh")  # type: ignore[no-any-return]
    if torch.compiler.is_compiling():
        u_F = x_F.float() + bias_F
        if kind == "gelu":
            return F.gelu(u_F).to(x_F.dtype)
        return (u_F * torch.sigmoid(u_F * (_RATE + _RATE * _CUBE * u_F * u_F))).to(x_F.dtype)
    return _BiasActivation.apply(x_F, bias_F, kind, torch.is_grad_enabled())  # type: ignore[no-any-return]


class _BiasActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_F, bias_F, kind, differentiate):  # type: ignore[no-untyped-def]
        out_F = torch.empty_like(x_F)
        slope_F = torch.empty_like(x_F) if differentiate else None
        features, wide_bias_F = x_F.shape[-1], bias_F.float()
        height = max(1, BLOCK_ELEMENTS // features)
        tensors = [x_F, out_F] if slope_F is None else [x_F, out_F, slope_F]
        for x_RF, out_RF, *slope_RF in zip(*(one.view(-1, features).split(height) for one in tensors), strict=True):
            write = _gelu_tanh if kind == "gelu_tanh" else _gelu
            write(x_RF.to(torch.float32, copy=True).add_(wide_bias_F), out_RF, *slope_RF)
        ctx.save_for_backward(slope_F)
        return out_F

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_F):  # type: ignore[no-untyped-def]
        (slope_F,) = ctx.saved_tensors
        grad_x_F = grad_F * slope_F
        return grad_x_F, grad_x_F.flatten(0, -2).sum(0), None, None


def _gelu_tanh(u_RF: Tensor, out_RF: Tensor, slope_RF: Tensor | None = None) -> None:
    """Writes the activation of `u`, which is overwritten; also the slope where there is memory for it."""
    w_RF = (u_RF * u_RF).mul_(_RATE * _CUBE).add_(_RATE)
    s_RF = (u_RF * w_RF).sigmoid_()
    out_RF.copy_(u_RF.mul_(s_RF))
    if slope_RF is not None:
        u_RF.mul_(1 - s_RF)
        slope_RF.copy_(s_RF.addcmul_(u_RF, w_RF, value=3).add_(u_RF, alpha=-2 * _RATE))


def _gelu(u_RF: Tensor, out_RF: Tensor, slope_RF: Tensor | None = None) -> None:
    """Writes the activation of `u`; also the slope where there is memory for it."""
    normal_RF = (u_RF * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
    out_RF.copy_(u_RF * normal_RF)
    if slope_RF is not None:
        density_RF = (u_RF * u_RF).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        slope_RF.copy_(normal_RF.addcmul_(u_RF, density_RF))


def _define() -> None:
    library.define("gpt1_ds::bias_gelu", "(Tensor x, Tensor bias, bool tanh) -> Tensor")
    library.define("gpt1_ds::bias_gelu_backward", "(Tensor grad, Tensor x, Tensor bias, bool tanh) -> (Tensor, Tensor)")
    library.impl("gpt1_ds::bias_gelu", "cuda", _forward_on_gpu)
    library.impl("gpt1_ds::bias_gelu_backward", "cuda", _backward_on_gpu)
    library.register_fake("gpt1_ds::bias_gelu", lambda x, bias, tanh: x.new_empty(x.shape))
    library.register_fake("gpt1_ds::bias_gelu_backward", _gradient_shapes)
    library.register_autograd("gpt1_ds::bias_gelu", _gradients, setup_context=_keep_inputs)


def _forward_on_gpu(x_F: Tensor, bias_F: Tensor, tanh: bool) -> Tensor:
    if (kernel := kernels.module("gelu_triton", x_F.device)) is None:
        return F.gelu(x_F + bias_F, approximate="tanh" if tanh else "none")
    out_F, features = x_F.new_empty(x_F.shape), x_F.shape[-1]
    kernel.forward(x_F.reshape(-1, features), bias_F, tanh, out_F.view(-1, features))
    return out_F


def _backward_on_gpu(grad_F: Tensor, x_F: Tensor, bias_F: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    features, (grad_x_F, parts_PF) = x_F.shape[-1], _gradient_shapes(grad_F, x_F, bias_F, tanh)
    if (kernel := kernels.module("gelu_triton", x_F.device)) is None:
        kind = "tanh" if tanh else "none"
        grad_x_F = torch.ops.aten.gelu_backward(grad_F, x_F + bias_F, approximate=kind)
        parts_PF.zero_()[0].copy_(grad_x_F.flatten(0, -2).sum(0))
        return grad_x_F, parts_PF
    grad_RF, x_RF = (one.reshape(-1, features) for one in (grad_F, x_F))
    kernel.backward(grad_RF, x_RF, bias_F, tanh, (grad_x_F.view(-1, features), parts_PF))
    return grad_x_F, parts_PF


def _gradient_shapes(grad_F: Tensor, x_F: Tensor, bias_F: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return x_F.new_empty(x_F.shape), x_F.new_empty(PARTS, x_F.shape[-1], dtype=torch.float32)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_F, bias_F, ctx.tanh = inputs
    ctx.save_for_backward(x_F, bias_F)


def _gradients(ctx: Any, grad_F: Tensor) -> tuple[Tensor | None, ...]:
    x_F, bias_F = ctx.saved_tensors
    grad_x_F, parts_PF = torch.ops.gpt1_ds.bias_gelu_backward(grad_F, x_F, bias_F, ctx.tanh)
    return grad_x_F, parts_PF.sum(0).to(bias_F.dtype), None


_define()
