"""The gradient norm of large tensors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from gpt1_ds.engine.gradient_norm import clip_in_update, square_sum


def test_large_tensors_lose_nothing_however_they_are_cut() -> None:
    values = torch.randn(3 << 22, generator=torch.Generator().manual_seed(1))
    exact = float(values.double().square().sum())
    assert float(square_sum([values])) == pytest.approx(exact, rel=1e-6)
    assert float(square_sum(values.view(3, -1).chunk(2, dim=1))) == pytest.approx(exact, rel=1e-6)


def test_what_is_not_finite_stays_so() -> None:
    assert math.isnan(float(square_sum([torch.ones(3), torch.tensor([1.0, math.nan])])))
    assert math.isinf(float(square_sum([torch.ones(3), torch.tensor([1.0, -math.inf])])))


@pytest.mark.parametrize(("norm", "scale"), [(0.25, 1.0), (1.0, 1.0 + 1e-6), (8.0, 8.0 + 1e-6)])
def test_the_update_is_told_what_clips(norm: float, scale: float) -> None:
    optimizer = SimpleNamespace()
    assert float(clip_in_update(optimizer, torch.tensor(norm), 1.0)) == norm
    assert float(optimizer.grad_scale) == pytest.approx(scale, rel=1e-7)
    assert float(optimizer.found_inf) == 0.0


@pytest.mark.parametrize("norm", [0.25, 8.0])
def test_the_update_is_told_what_makes_means_of_sums(norm: float) -> None:
    alone, summed = SimpleNamespace(), SimpleNamespace()
    assert clip_in_update(alone, torch.tensor(norm), 1.0) == clip_in_update(summed, torch.tensor(norm), 1.0, 8)
    assert float(summed.grad_scale) == 8 * float(alone.grad_scale)


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_the_update_is_told_of_a_norm_that_is_not_finite(norm: float) -> None:
    optimizer = SimpleNamespace()
    assert float(clip_in_update(optimizer, torch.tensor(norm), 0.0)) == math.inf
    assert optimizer.grad_scale is None
    assert float(optimizer.found_inf) == 1.0
