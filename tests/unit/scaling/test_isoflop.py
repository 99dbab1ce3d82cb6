"""IsoFLOP parabolas: their minima and the line through them."""

from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.scaling.isoflop import BIAS, isoflop
from gpt1_ds.scaling.laws import compute_optimal
from gpt1_ds.scaling.points import Point
from tests.helpers.laws import TRUTH, law


def at_budget(flops: float, sizes: np.ndarray) -> list[Point]:
    return [Point(f"{flops:g}-{n:g}", n, d := flops / 6 / n, d, law(n, d, **TRUTH), flops=flops) for n in sizes]


def test_minima_of_a_symmetric_law_lie_on_its_line() -> None:
    truth = {**TRUTH, "beta": TRUTH["alpha"]}
    points = []
    for flops in (1e18, 1e19, 1e20):
        best = compute_optimal(truth, flops)[0]
        for n in best * np.geomspace(0.5, 2, 5):
            d = flops / 6 / n
            points.append(Point(f"{flops}{n}", n, d, d, law(n, d, **truth)))
    found = isoflop(points)
    assert found is not None
    assert found["a"] == pytest.approx(0.5, abs=1e-6)
    assert found["note"] == BIAS
    for budget in found["budgets"]:
        assert budget["n_opt"] == pytest.approx(float(compute_optimal(truth, budget["flops"])[0]), rel=1e-3)
        assert budget["points"] == 5
        assert budget["inside"]


def test_a_minimum_outside_its_sizes_is_none() -> None:
    far = float(compute_optimal(TRUTH, 1e19)[0]) * np.geomspace(3, 8, 4)
    found = isoflop(at_budget(1e19, far))
    assert found is not None
    assert [(budget["inside"], budget["n_opt"]) for budget in found["budgets"]] == [(False, None)]
    assert found["a"] is None


def test_no_budget_with_three_sizes() -> None:
    assert isoflop(at_budget(1e19, np.array([1e8, 2e8])) + at_budget(1e20, np.array([1e8, 2e8]))) is None
