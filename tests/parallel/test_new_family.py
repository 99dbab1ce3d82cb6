"""Another family is another list of layers: every engine runs it, with the numbers of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.launcher import launch
from tests.helpers import throwaway
from tools import layouts
from tools.layouts import LAYOUTS, RECIPE, Layout

STEPS = 5


def train_here(overrides: list[str], steps: int) -> dict[str, Any]:
    """Runs on every rank."""
    from gpt1_ds.architecture import architecture

    before = architecture.BODIES["gpt"]
    architecture.BODIES["gpt"] = throwaway.body
    architecture.architecture.cache_clear()
    try:
        return layouts.train_here(overrides, steps)
    finally:
        architecture.BODIES["gpt"] = before
        architecture.architecture.cache_clear()


def trained(layout: Layout, data: Path) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """Losses, gradient norms and final weights."""
    arguments = [*RECIPE, f"data.path={data}", f"train.steps={STEPS}", *layout.overrides]
    ranks = launch.run("tests.parallel.test_new_family:train_here", (arguments, STEPS), layout.ranks)
    weights = layouts.whole_weights([rank["weights"] for rank in ranks])
    return ranks[0]["losses"], ranks[0]["norms"], weights


@pytest.fixture(scope="module")
def one(tiny_data: Path) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    return trained(layouts.ONE, tiny_data)


def test_it_is_another_model(one: tuple[list[float], list[float], dict[str, np.ndarray]]) -> None:
    names = set(one[2])
    assert {"final_norm.weight", "final_norm.bias", "blocks.3.mlp_norm.bias"} <= names
    assert not [name for name in names if name.endswith((".qkv.bias", ".out.bias", ".up.bias", ".down.bias"))]


@pytest.mark.parametrize("name", ["tp2 pp2", "tp2 sequence"])
def test_it_equals_one_process(
    name: str, one: tuple[list[float], list[float], dict[str, np.ndarray]], tiny_data: Path
) -> None:
    losses, norms, weights = trained(next(layout for layout in LAYOUTS if layout.name == name), tiny_data)
    np.testing.assert_allclose(losses, one[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(norms, one[1], rtol=1e-4)
    assert weights.keys() == one[2].keys()
    for parameter, values in one[2].items():
        np.testing.assert_allclose(weights[parameter], values, rtol=0, atol=1e-5, err_msg=parameter)
