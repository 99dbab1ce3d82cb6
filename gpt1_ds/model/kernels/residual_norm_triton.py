"""Dropout, residual sum and LayerNorm as one Triton kernel: every state is read and written once.

The dropout mask is model/dropout.py's, computed in registers in both passes. The backward pass gives each program a
fixed set of rows and each program's part of the gradients of weight and bias, so every result repeats to the bit.

Shapes: R = S positions x B rows (rows fastest), D channels, P programs.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from gpt1_ds.model.kernels.attention_triton import keep, mask_key
from gpt1_ds.model.kernels.inputs import RowDrop

UNSPECIALISED = ("first", "rows", "batch", "limit", "pairs")  # numbers that need no kernel for each kind of value


def forward(
    x_SBD: Tensor, y_SBD: Tensor, weight_D: Tensor, bias_D: Tensor, drop: RowDrop, eps: float,
    made: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Writes LN(x + dropout(y)), the sum [S, B, D], and its mean and inverse deviation fp32 [2, R]."""
    rows = made[2].shape[1]
    numbers, constants = _arguments(x_SBD, drop)
    forward_kernel[(rows,)](
        x_SBD, y_SBD, weight_D, bias_D, drop.key_B, drop.second_B, *made, *numbers, drop.scale, eps, **constants
    )


def backward(
    grad_SBD: Tensor, grad_sum_SBD: Tensor | None, sum_SBD: Tensor, stats_2R: Tensor, weight_D: Tensor, drop: RowDrop,
    made: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Writes the gradients of x and y, and parts of those of weight and bias fp32 [P, 2, D]."""
    numbers, constants = _arguments(sum_SBD, drop)
    backward_kernel[(len(made[2]),)](
        grad_SBD, grad_sum_SBD, sum_SBD, stats_2R, weight_D, drop.key_B, drop.second_B, *made, *numbers, drop.scale,
        SUMMED=grad_sum_SBD is not None, **constants,
    )  # fmt: skip


def warps_for(width: int) -> int:
    """Returns the number of warps of a program that holds a row of this width in registers."""
    return int(min(16, max(4, triton.next_power_of_2(width) // 128)))


def _arguments(x_SBD: Tensor, drop: RowDrop) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Returns (numbers that both kernels take, what they are compiled for)."""
    positions, batch, width = x_SBD.shape
    numbers = (drop.first, positions * batch, batch, drop.limit, (width + 1) // 2)
    constants = {"W": width, "N": triton.next_power_of_2(width), "DROP": drop.key_B is not None}
    return numbers, {**constants, "num_warps": warps_for(width)}


@triton.jit(do_not_specialize=UNSPECIALISED)
def forward_kernel(
    X, Y, WEIGHT, BIAS, KEY, SECOND, OUT, SUM, STATS, first, rows, batch, limit, pairs, scale, eps,
    W: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """One program for each row."""
    row = tl.program_id(0)
    column = tl.arange(0, N)
    mask = column < W
    offsets = tl.cast(row, tl.int64) * W + column
    x = tl.load(X + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(Y + offsets, mask=mask, other=0.0).to(tl.float32)
    total = (x + dropped(y, KEY, SECOND, row, first, batch, limit, pairs, scale, N, DROP)).to(SUM.dtype.element_ty)
    tl.store(SUM + offsets, total, mask=mask)
    total = total.to(tl.float32)
    mean = tl.sum(total, 0) / W
    centred = tl.where(mask, total - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / W + eps)
    tl.store(STATS + row, mean)
    tl.store(STATS + rows + row, inverse)
    weight = tl.load(WEIGHT + column, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(OUT + offsets, (centred * inverse * weight + bias).to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_kernel(
    GRAD, GRAD_SUM, SUM, STATS, WEIGHT, KEY, SECOND, GRAD_X, GRAD_Y, PARTS, first, rows, batch, limit, pairs, scale,
    SUMMED: tl.constexpr, W: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Program p has the rows p, p + P, p + 2 P, ..."""
    program = tl.program_id(0)
    column = tl.arange(0, N)
    mask = column < W
    weight = tl.load(WEIGHT + column, mask=mask, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([N], tl.float32)
    grad_bias = tl.zeros([N], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        offsets = tl.cast(row, tl.int64) * W + column
        grad = tl.load(GRAD + offsets, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.load(STATS + rows + row)
        total = tl.load(SUM + offsets, mask=mask, other=0.0).to(tl.float32)
        normal = tl.where(mask, (total - tl.load(STATS + row)) * inverse, 0.0)
        grad_weight += grad * normal
        grad_bias += grad
        grad *= weight
        grad = inverse * (grad - tl.sum(grad, 0) / W - normal * (tl.sum(grad * normal, 0) / W))
        if SUMMED:
            grad += tl.load(GRAD_SUM + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(GRAD_X + offsets, grad.to(GRAD_X.dtype.element_ty), mask=mask)
        grad = dropped(grad, KEY, SECOND, row, first, batch, limit, pairs, scale, N, DROP)
        tl.store(GRAD_Y + offsets, grad.to(GRAD_Y.dtype.element_ty), mask=mask)
    PARTS += tl.cast(program, tl.int64) * 2 * W
    tl.store(PARTS + column, grad_weight, mask=mask)
    tl.store(PARTS + W + column, grad_bias, mask=mask)


@triton.jit
def dropped(y, KEY, SECOND, row, first, batch, limit, pairs, scale, N: tl.constexpr, DROP: tl.constexpr):
    """Returns a row of fp32 [N] with dropout."""
    if DROP:
        key, second = mask_key(KEY, row % batch, DROP), mask_key(SECOND, row % batch, DROP)
        position = first + row // batch + tl.zeros([1], tl.int32)
        kept = tl.reshape(keep(position, 0, pairs, key, second, limit, N), [N])
        y = tl.where(kept, y * scale, 0.0)
    return y
