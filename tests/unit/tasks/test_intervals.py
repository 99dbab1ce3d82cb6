"""Intervals against scipy, against published numbers, and against drawing again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from gpt1_ds.tasks.intervals import of_area, of_matthews, of_shares


@pytest.mark.parametrize(("right", "count"), [(0, 10), (3, 10), (273, 273), (561, 1000), (1, 2)])
def test_one_share_has_wilsons(right: int, count: int) -> None:
    wanted = binomtest(right, count).proportion_ci(method="wilson")
    assert of_shares([right / count], [count]) == pytest.approx((wanted.low, wanted.high))


def test_the_mean_of_shares_is_as_certain_as_they_together() -> None:
    """Twelve phenomena as BLiMP's: the standard error of the mean, from the binomial variances."""
    numbers = np.random.default_rng(0)
    shares, counts = numbers.uniform(0.3, 0.9, 12), numbers.integers(1000, 9000, 12)
    error = np.sqrt((shares * (1 - shares) / counts).sum()) / 12
    low, high = of_shares(shares.tolist(), counts.tolist())
    assert (low, high) == pytest.approx((shares.mean() - 1.96 * error, shares.mean() + 1.96 * error), abs=1e-4)
    assert of_shares([1.0, 1.0], [5, 5])[0] < 0.9, "few that are all right are no certainty"
    drawn = (numbers.binomial(counts, shares, (4000, 12)) / counts).mean(axis=1)
    assert ((low < drawn) & (drawn < high)).mean() == pytest.approx(0.95, abs=0.015)


def test_the_area_and_its_standard_error() -> None:
    """Pair by pair, as DeLong et al. (1988) write it, with equal values."""
    numbers = np.random.default_rng(1)
    gold = numbers.integers(0, 2, 60)
    values = np.round(numbers.normal(size=60) + gold, 1)
    found = of_area(values, gold)
    assert found is not None
    area, low, high = found
    assert area == pytest.approx(roc_auc_score(gold, values))
    ones, zeros = values[gold == 1], values[gold == 0]
    above_PQ = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    error = np.sqrt(above_PQ.mean(axis=1).var(ddof=1) / len(ones) + above_PQ.mean(axis=0).var(ddof=1) / len(zeros))
    assert (low, high) == pytest.approx((area - 1.959964 * error, area + 1.959964 * error))
    assert of_area(values, np.ones(60, dtype=np.int64)) is None
    assert of_area(np.array([1.0, 2.0]), np.array([0, 1])) == (1.0, 1.0, 1.0)


def test_matthews_by_drawing_examples_again() -> None:
    numbers = np.random.default_rng(2)
    gold = numbers.integers(0, 2, 400)
    predicted = np.where(numbers.random(400) < 0.7, gold, 1 - gold)
    drawn = []
    for _ in range(1000):
        rows = numbers.integers(0, 400, 400)
        drawn.append(np.corrcoef(gold[rows], predicted[rows])[0, 1])  # which is theirs, of two classes
    assert of_matthews(gold, predicted) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.02)
    assert of_matthews(gold, predicted) == of_matthews(gold, predicted), "the same each time"
    assert of_matthews(gold, np.ones(400, dtype=np.int64)) == (0.0, 0.0)
