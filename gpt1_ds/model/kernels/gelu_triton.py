"""A bias and the GELU after it as Triton kernels; the backward pass adds the bias's gradient up while it is there.

gelu.py has the formulas. Each program of the backward pass has a fixed set of rows, so that results repeat
to the bit.

Shapes: R rows, F features, P parts of the rows.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

ROWS, FEATURES = 8, 256  # of a tile
WARPS = 4
UNSPECIALISED = ("rows", "features")  # numbers that need no kernel for each kind of value
RATE, CUBE = tl.constexpr(1.5957691216057308), tl.constexpr(0.044715)  # 2 sqrt(2 / pi)
ROOT_HALF, DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)  # sqrt(1/2), 1 / sqrt(2 pi)


def forward(x_RF: Tensor, bias_F: Tensor, tanh: bool, out_RF: Tensor) -> None:
    """Writes gelu(x + bias)."""
    rows, features = x_RF.shape
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(features, FEATURES))
    forward_kernel[grid](x_RF, bias_F, out_RF, rows, features, **_constants(tanh))


def backward(grad_RF: Tensor, x_RF: Tensor, bias_F: Tensor, tanh: bool, made: tuple[Tensor, Tensor]) -> None:
    """Writes the gradient of x, and parts of that of the bias fp32 [P, F]."""
    grad_x_RF, parts_PF = made
    rows, features = x_RF.shape
    grid = (len(parts_PF), triton.cdiv(features, FEATURES))
    backward_kernel[grid](grad_RF, x_RF, bias_F, grad_x_RF, parts_PF, rows, features, **_constants(tanh))


def _constants(tanh: bool) -> dict[str, Any]:
    return {"TANH": tanh, "M": ROWS, "N": FEATURES, "num_warps": WARPS}


@triton.jit(do_not_specialize=UNSPECIALISED)
def forward_kernel(
    X, BIAS, OUT, rows, features, TANH: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """One program for each tile."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    mask = (row < rows)[:, None] & (column < features)[None, :]
    offsets = row.to(tl.int64)[:, None] * features + column[None, :]
    bias = tl.load(BIAS + column, mask=column < features, other=0.0).to(tl.float32)
    u = tl.load(X + offsets, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    tl.store(OUT + offsets, (u * gate(u, TANH)).to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward_kernel(
    GRAD, X, BIAS, GRAD_X, PARTS, rows, features, TANH: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Program (p, j) has the tiles p, p + P, p + 2 P, ... of column tile j."""
    column = tl.program_id(1) * N + tl.arange(0, N)
    bias = tl.load(BIAS + column, mask=column < features, other=0.0).to(tl.float32)
    total = tl.zeros([N], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = tile * M + tl.arange(0, M)
        mask = (row < rows)[:, None] & (column < features)[None, :]
        offsets = row.to(tl.int64)[:, None] * features + column[None, :]
        u = tl.load(X + offsets, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
        grad = tl.load(GRAD + offsets, mask=mask, other=0.0).to(tl.float32) * slope(u, TANH)
        tl.store(GRAD_X + offsets, grad.to(GRAD_X.dtype.element_ty), mask=mask)
        total += tl.sum(grad, 0)
    tl.store(PARTS + tl.program_id(0) * features + column, total, mask=column < features)


@triton.jit
def gate(u, TANH: tl.constexpr):
    """Returns what `u` is multiplied with."""
    if TANH:
        return tl.sigmoid(u * (RATE + RATE * CUBE * u * u))
    return 0.5 + 0.5 * tl.erf(u * ROOT_HALF)


@triton.jit
def slope(u, TANH: tl.constexpr):
    s = gate(u, TANH)
    if TANH:
        w = RATE + RATE * CUBE * u * u
        return s + u * s * (1.0 - s) * (3.0 * w - 2.0 * RATE)
    return s + u * DENSITY * tl.exp(-0.5 * u * u)
