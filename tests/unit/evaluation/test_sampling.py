"""Which ways of drawing text are refused."""

from __future__ import annotations

import math
from typing import Any, get_args

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
