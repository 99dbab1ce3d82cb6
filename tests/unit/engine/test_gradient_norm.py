"""The gradient norm of large tensors."""

from __future__ import annotations

import math

import pytest
import torch

from gpt1_ds.engine.gradient_norm import square_sum


def test_large_tensors_lose_nothing_however_they_are_cut() -> None:
    values = torch.randn(3 << 22, generator=torch.Generator().manual_seed(1))
    exact = float(values.double().square().sum())
    assert float(square_sum([values])) == pytest.approx(exact, rel=1e-6)
    assert float(square_sum(values.view(3, -1).chunk(2, dim=1))) == pytest.approx(exact, rel=1e-6)


def test_what_is_not_finite_stays_so() -> None:
    assert math.isnan(float(square_sum([torch.ones(3), torch.tensor([1.0, math.nan])])))
    assert math.isinf(float(square_sum([torch.ones(3), torch.tensor([1.0, -math.inf])])))
