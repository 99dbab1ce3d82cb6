"""Which ways of drawing text are refused."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from gpt1_ds.common.errors import ArgumentError
from gpt1_ds.evaluation.sampling import LengthPenalty, Sampling


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


@pytest.mark.parametrize("key", ["tokens", "top_k", "seed", "min_tokens", "beams", "temperature", "top_p"])
@pytest.mark.parametrize("value", [1.5, 2.0, "2", [2]])
def test_values_of_another_kind(key: str, value: Any) -> None:
    """In Python they reach the model; a number that is no whole one draws nothing there."""
    if key in ("temperature", "top_p") and isinstance(value, float):
        return
    with pytest.raises(ArgumentError) as told:
        Sampling(**{key: value})
    kind = "number" if key in ("temperature", "top_p") else "whole number"
    assert told.value.problems == (f"{key}={value!r} must be a {kind}",)
    assert Sampling(**{key: np.int64(1)}) == Sampling(**{key: 1})


def test_one_mistake_is_one_line() -> None:
    with pytest.raises(ArgumentError) as told:
        Sampling(tokens=-1)
    assert told.value.problems == ("tokens=-1 must be at least 1",)


@pytest.mark.parametrize("alpha", [-2000.0, 400.0, math.nan, math.inf])
def test_powers_of_a_length_are_finite(alpha: float) -> None:
    with pytest.raises(ArgumentError, match=rf"^length_alpha={alpha} must be a number from -40 to 40"):
        Sampling(beams=2, length_alpha=alpha)
    for most in (-40.0, 40.0):
        for penalty in get_args(LengthPenalty):
            score = Sampling(beams=2, length_alpha=most, length_penalty=penalty).normalised
            assert -math.inf < score(-1e9, 10**7) < score(-1e8, 10**7) < 0
