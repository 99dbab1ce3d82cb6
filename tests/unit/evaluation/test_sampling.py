"""Which ways of drawing text are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpt1_ds.common.errors import ArgumentError
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
