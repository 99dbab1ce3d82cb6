"""Products of matrices in bf16 or fp16 on CPUs without units for them, where torch's own take 6 to 60 times as long as
those in fp32 (most CPUs with AVX2 alone).

Factors and results stay rounded to 16 bits; in between, everything is fp32. That is what the units of other CPUs and of
GPUs compute, too, so the definition is the same and only the order of the sums differs.

Shapes: G products at once, M rows, K summed, N columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def _without_units() -> frozenset[torch.dtype]:
    """Returns the 16-bit types that this CPU multiplies number by number."""
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    units = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return frozenset(dtype for dtype, found in units.items() if not found)


SLOW = _without_units()


def slow(x: Tensor) -> bool:
    """Returns whether products of this tensor are computed in fp32."""
    return x.dtype in SLOW and x.device.type == "cpu"


def note(precision: str, device: torch.device) -> str | None:
    """Returns what a run in `precision` (train.precision) has to know about this CPU; None where there is nothing."""
    if device.type != "cpu" or {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision) not in SLOW:
        return None
    return f"train.precision={precision}: this CPU has no units for it; products are computed in fp32, at fp32's speed"


def wide(x: Tensor) -> Tensor:
    """Returns `x`, in fp32 where its products are."""
    return x.float() if slow(x) else x


def product(a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Writes a b + bias into `out`, and returns it. A factor of several products may have been made `wide` before."""
    a_MK, b_KN = wide(a_MK), wide(b_KN)
    if a_MK.dtype != out_MN.dtype:
        bias_N = None if bias_N is None else wide(bias_N)
        return out_MN.copy_(a_MK @ b_KN if bias_N is None else torch.addmm(bias_N, a_MK, b_KN))
    return torch.mm(a_MK, b_KN, out=out_MN) if bias_N is None else torch.addmm(bias_N, a_MK, b_KN, out=out_MN)


def batched(a_GMK: Tensor, b_GKN: Tensor, factor: float, out_GMN: Tensor | None = None) -> Tensor:
    """Returns factor x a b [G, M, N], in `out` if it is given. A factor costs nothing before the sums are rounded, a
    pass over memory after it.
    """
    out_GMN = a_GMK.new_empty(*a_GMK.shape[:2], b_GKN.shape[2]) if out_GMN is None else out_GMN
    if slow(a_GMK):
        wide_GMN = torch.empty_like(out_GMN, dtype=torch.float32)
        return out_GMN.copy_(torch.baddbmm(wide_GMN, a_GMK.float(), b_GKN.float(), beta=0, alpha=factor, out=wide_GMN))
    return torch.baddbmm(out_GMN, a_GMK, b_GKN, beta=0, alpha=factor, out=out_GMN)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Returns x [..., K] -> x w' + bias [..., N], as torch.nn.functional.linear does."""
    if not slow(x):
        return torch.nn.functional.linear(x, weight_NK, bias_N)
    return _WideLinear.apply(x, weight_NK, bias_N)  # type: ignore[no-any-return]


class _WideLinear(torch.autograd.Function):
    """Saves the factors in 16 bits: autograd's own graph of the casts would keep them in fp32."""

    @staticmethod
    def forward(ctx, x, weight_NK, bias_N):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight_NK)
        ctx.biased = bias_N is not None
        bias = bias_N.float() if ctx.biased else None
        return torch.nn.functional.linear(x.float(), weight_NK.float(), bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        wide_MN = grad.reshape(-1, grad.shape[-1]).float()
        grad_x = grad_weight_NK = grad_bias_N = None
        if needs_x:
            grad_x = (wide_MN @ weight_NK.float()).to(x.dtype).view(x.shape)
        if needs_weight:
            grad_weight_NK = (wide_MN.t() @ x.reshape(-1, x.shape[-1]).float()).to(weight_NK.dtype)
        if ctx.biased and needs_bias:
            grad_bias_N = wide_MN.sum(0).to(grad.dtype)
        return grad_x, grad_weight_NK, grad_bias_N
