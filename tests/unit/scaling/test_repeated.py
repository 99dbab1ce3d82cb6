"""Repeated data: the form's limits, and its fit on points that it made itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.scaling.fitting import fit_file
from gpt1_ds.scaling.laws import compute_optimal, predicted_loss
from gpt1_ds.scaling.repeated import Runs, diminished, fit_returns, objective, optimal_size, profile
from tests.helpers.laws import TRUTH, law, rows_of, write_csv

RETURNS = {"R_D": 12.0, "R_N": 6.0}


def runs_of(values: dict[str, float], noise: float = 0.0) -> Runs:
    axes = (np.geomspace(1e7, 1e9, 5), np.geomspace(1e8, 3e9, 4), np.array([1.0, 2, 4, 10, 40]))
    n, u, epochs = (axis.ravel() for axis in np.meshgrid(*axes))
    loss = predicted_loss("repeated", values, n, u * epochs, u)[0]
    return Runs(n, u * epochs, u, loss * np.exp(noise * np.random.default_rng(0).standard_normal(len(n))))


def test_one_epoch_is_worth_itself_and_endless_ones_a_limit() -> None:
    u = np.array([5.0])
    assert diminished(u, u, np.array([15.0]))[0] == 5
    assert diminished(1e9 * u, u, np.array([15.0]))[0] == pytest.approx(5 * 16)
    assert diminished(3 * u, u, np.array([1e6]))[0] == pytest.approx(15, rel=1e-5)


def test_optimal_size_is_that_of_the_optimal_budget() -> None:
    n, d = compute_optimal(TRUTH, 1e20)
    base = {name: np.array([[value]]) for name, value in TRUTH.items()}
    assert optimal_size(base, np.array([float(d)]))[0, 0] == pytest.approx(float(n))
    assert 6 * n * d == pytest.approx(1e20)
    least = law(n, d, **TRUTH)
    assert least < law(1.1 * n, d / 1.1, **TRUTH)
    assert least < law(n / 1.1, 1.1 * d, **TRUTH)


def test_without_repetition_small_models_follow_the_plain_law() -> None:
    n, d = np.array([1e7]), np.array([1e10])
    found = predicted_loss("repeated", {**TRUTH, **RETURNS}, n, d, d)
    assert found[0, 0] == pytest.approx(float(law(n, d, **TRUTH)[0]))


def test_returns_are_found_on_points_without_noise() -> None:
    runs = runs_of({**TRUTH, **RETURNS})
    base = {name: np.array([value]) for name, value in TRUTH.items()}
    found, reached = fit_returns(base, runs, np.ones((1, len(runs.n))))
    assert found[0] == pytest.approx([RETURNS["R_D"], RETURNS["R_N"]], rel=0.01)
    assert objective({**base, "R_D": found[:, 0], "R_N": found[:, 1]}, runs)[0] == pytest.approx(reached[0], rel=1e-9)


def test_draws_side_by_side_are_single_ones() -> None:
    runs = runs_of({**TRUTH, **RETURNS}, 0.01)
    weights = np.random.default_rng(1).exponential(size=(11, len(runs.n)))
    base = {name: np.full(11, value) for name, value in TRUTH.items()}
    together, _ = fit_returns(base, runs, weights)
    alone, _ = fit_returns({name: value[9:10] for name, value in base.items()}, runs, weights[9:10])
    np.testing.assert_array_equal(together[9], alone[0])


def test_profile_is_narrow_where_the_points_say_much_and_wide_where_not() -> None:
    runs = runs_of({**TRUTH, **RETURNS}, 0.003)
    low, high = profile({**TRUTH}, runs).R_D
    assert low <= RETURNS["R_D"] * 1.1
    assert high >= RETURNS["R_D"] / 1.1
    assert high / low < 1.6
    few = runs.d <= 1.5 * runs.u
    once = Runs(runs.n[few], runs.d[few], runs.u[few], runs.loss[few])
    flat = profile({**TRUTH}, once).R_D
    assert flat == pytest.approx((0.05, 1e4))


def test_all_of_it_is_fitted_from_a_file(tmp_path: Path) -> None:
    truth = {**TRUTH, "R_D": 12.0, "R_N": 1e4}
    runs = runs_of(truth, 0.002)
    rows = [{**row, "u": u} for row, u in zip(rows_of(runs.n, runs.d, runs.loss), runs.u, strict=True)]
    record, _ = fit_file(write_csv(tmp_path / "points.csv", rows), form="repeated", draws=60)
    low, high = record["intervals"]["R_D"]
    assert low < 12 < high
    assert record["R_D"] == pytest.approx(12, rel=0.5)
    assert record["starts"]["agreeing"] == 5
    assert set(record["bootstrap"]["samples"]) == {"alpha", "beta", "E", "A", "B", "R_D", "R_N"}
    assert len(record["bootstrap"]["samples"]["R_D"]) == 60
