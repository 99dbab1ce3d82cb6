"""A fitted law: its loss, and the frontier that it allows."""

from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.scaling.laws import compute_optimal, frontier, has_frontier, predicted_loss, tokens_for
from tests.helpers.laws import TRUTH, law
from tests.helpers.scaling_study import LAW, R_D, predicted


def test_the_law_is_that_of_the_papers() -> None:
    found = predicted_loss("chinchilla", TRUTH, 1e8, np.array([1e10, 2e10]), 1.0)
    assert found == pytest.approx(law(1e8, np.array([[1e10, 2e10]]), **TRUTH))
    repeated = {**LAW, "R_D": R_D, "R_N": 5.0}
    n, d, u = 5e6, 6.4e7, 8e6
    assert predicted_loss("repeated", repeated, n, d, u)[0, 0] == pytest.approx(predicted(n, d, u))
    large = predicted_loss("repeated", repeated, 1e10, d, u)[0, 0]
    assert large > law(1e10, 1e12, **LAW), "more parameters than the data can fill"


@pytest.mark.parametrize("k", [6.0, 6.2])
def test_no_size_beats_the_frontier(k: float) -> None:
    n = np.geomspace(1e5, 1e12, 20_001)
    flops = np.array([1e16, 1e20])
    best = [law(n, c / k / n, **TRUTH).min() for c in flops]
    assert frontier(TRUTH, flops, k)[0] == pytest.approx(best, rel=1e-8)
    size, tokens = compute_optimal(TRUTH, flops, k)
    assert k * size * tokens == pytest.approx(flops)


def test_draws_have_a_frontier_each() -> None:
    draws = {name: np.array([value, 1.01 * value]) for name, value in TRUTH.items()}
    found = frontier(draws, [1e18, 1e19, 1e20])
    assert found.shape == (2, 3)
    assert found[1] == pytest.approx(
        frontier({name: 1.01 * value for name, value in TRUTH.items()}, [1e18, 1e19, 1e20])[0]
    )


def test_a_form_of_one_axis_has_no_frontier() -> None:
    one = {"alpha": 0.3, "E": 2.0, "A": 100.0}
    assert not has_frontier(one)
    assert has_frontier(TRUTH)
    assert predicted_loss("power_n", one, 1e6, 1e9, 1e9)[0, 0] == pytest.approx(2 + 100 / 1e6**0.3)


@pytest.mark.parametrize("n", [1e6, 1e9])
def test_tokens_for_a_target_give_the_target(n: float) -> None:
    """Also where few tokens make a part of a large model useless."""
    repeated = {**LAW, "R_D": R_D, "R_N": 5.0}
    for form, values in (("repeated", repeated), ("chinchilla", LAW)):
        for tokens in (1e7, 1e9, 1e11):
            target = float(predicted_loss(form, values, n, tokens, tokens)[0, 0])
            assert float(tokens_for(form, values, n, target)) == pytest.approx(tokens, rel=1e-3)
        assert float(tokens_for(form, values, n, LAW["E"])) == np.inf
    draws = {name: np.array([value, value]) for name, value in repeated.items()}
    assert tokens_for("repeated", draws, n, 4.0) == pytest.approx([float(tokens_for("repeated", repeated, n, 4.0))] * 2)
