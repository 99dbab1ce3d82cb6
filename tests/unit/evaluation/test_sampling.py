"""Which ways of drawing text are refused, and that what is left of them draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gpt1_ds.common.errors import ArgumentError
from gpt1_ds.evaluation.decoding import choose
from gpt1_ds.evaluation.sampling import Sampling


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temperature", value) for value in (-1.0, math.nan, math.inf)),
        *(("tokens", 0), ("top_k", -1), ("top_p", 0.0), ("top_p", math.nan), ("seed", -1), ("seed", 2**64)),
    ],
)
def test_refused(key: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{key}={value} must") as told:
        Sampling(**{key: value})
    assert str(told.value.of_options()).startswith(f"--{key.replace('_', '-')}={value} must")


def test_one_mistake_is_one_line() -> None:
    with pytest.raises(ArgumentError) as told:
        Sampling(tokens=-1)
    assert told.value.problems == ("tokens=-1 must be at least 1",)


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-7])
def test_nearly_no_temperature_takes_the_likeliest(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_V = torch.tensor([900.0, -torch.inf, 901.0, 3.0])
    assert {choose(logits_V, Sampling(temperature=temperature), generator) for _ in range(20)} == {2}


def test_temperature_one_draws_by_the_models_probabilities() -> None:
    generator = torch.Generator().manual_seed(1)
    logits_V = torch.tensor([0.5, 0.3, 0.2]).log() + 40
    drawn = torch.tensor([choose(logits_V, Sampling(temperature=1), generator) for _ in range(4000)])
    shares = torch.bincount(drawn, minlength=3) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.04)  # five standard deviations
