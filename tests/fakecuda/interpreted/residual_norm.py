"""Dropout, residual sum and LayerNorm in Triton's interpreter: mask bits equal the CPU's, numbers those of float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gpt1_ds.model import dropout
from gpt1_ds.model.kernels import residual_norm, residual_norm_triton
from gpt1_ds.model.kernels.inputs import RowDrop
from tests.helpers import reference

SEED, STEP, SITE = 2**63 - 1, 12345, 5
EPS = 1e-5
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
WIDTHS = (32, 100, 768, 1600)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a program has several rows, and the interpreter little to do for programs that have none."""
    monkeypatch.setattr(residual_norm, "PARTS", 4)


def mask_of(positions: int, rows: int, width: int, probability: float, first: int = 0) -> Tensor:
    """[S, B, D]: 1 / keep probability or 0, by the restatement in numpy that the CPU's masks are tested with."""
    if not probability:
        return torch.ones(positions, rows, width, dtype=torch.float64)
    kept = [
        reference.keep(
            first + positions, width, reference.site_keys(reference.row_key(SEED, STEP, row), SITE, 0), probability
        )
        for row in range(rows)
    ]
    scale = dropout.scale(probability)
    return torch.stack([torch.from_numpy(one[first:]) for one in kept], 1).double() * scale


def numbers(rows: int, probability: float, first: int = 0) -> RowDrop:
    """What the operation is told of the mask."""
    if not probability:
        return RowDrop(None, None, first, 0, 1.0)
    keys = [reference.site_keys(reference.row_key(SEED, STEP, row), SITE, 0) for row in range(rows)]
    key_B, second_B = (torch.tensor(part, dtype=torch.int64).to(torch.int32) for part in zip(*keys, strict=True))
    return RowDrop(key_B, second_B, first, dropout.threshold(probability), dropout.scale(probability))


def both(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, grads: tuple[Tensor, Tensor | None], mask: RowDrop
) -> list[Tensor]:
    """Results and gradients of the kernels."""
    made = residual_norm._shapes(x)
    residual_norm_triton.forward(x, y, weight, bias, mask, EPS, made)
    out, total, stats = made
    back = residual_norm._gradient_shapes(grads[0], grads[1], total)
    residual_norm_triton.backward(*grads, total, stats, weight, mask, back)
    return [out, total, *back[:2], *back[2].sum(0)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("probability", [0.0, 0.1])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_equals_float64(width: int, probability: float, summed: bool, dtype: torch.dtype) -> None:
    positions, rows = 5, 3
    draw = torch.Generator().manual_seed(width)
    x, y, grad, grad_sum = (torch.randn(positions, rows, width, generator=draw).to(dtype) for _ in range(4))
    weight, bias = (torch.randn(width, generator=draw).to(dtype) for _ in range(2))
    found = both(x, y, weight, bias, (grad, grad_sum if summed else None), numbers(rows, probability))
    wide = [one.double().requires_grad_() for one in (x, y, weight, bias)]
    total = wide[0] + wide[1] * mask_of(positions, rows, width, probability)
    out = torch.nn.functional.layer_norm(total, (width,), wide[2], wide[3], EPS)
    loss = (out * grad.double()).sum() + ((total * grad_sum.double()).sum() if summed else 0.0)
    wanted = [out, total, *torch.autograd.grad(loss, wide)]
    for number, (one, want) in enumerate(zip(found, wanted, strict=True)):
        assert float((one.double() - want).norm() / want.norm()) <= NEAR[dtype], number


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize(("positions", "rows", "width"), [(1, 1, 32), (9, 2, 99), (3, 5, 768)])
@pytest.mark.parametrize("probability", [0.01, 0.5])
def test_masks_are_the_cpus(first: int, positions: int, rows: int, width: int, probability: float) -> None:
    """Also of a rank that holds the positions from `first` on."""
    zeros, ones, weight = torch.zeros(positions, rows, width), torch.ones(positions, rows, width), torch.ones(width)
    mask = numbers(rows, probability, first)
    total, grad_y = (both(zeros, ones, weight, weight, (zeros, ones), mask)[number] for number in (1, 3))
    wanted = mask_of(positions, rows, width, probability, first)
    assert torch.equal(total != 0, wanted != 0)
    assert torch.equal(grad_y != 0, wanted != 0)


def test_a_result_repeats_to_the_bit() -> None:
    x, y, grad = (torch.randn(30, 1, 32) for _ in range(3))
    weight, bias = torch.randn(32), torch.randn(32)
    first, again = (both(x, y, weight, bias, (grad, None), numbers(1, 0.1)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
