"""Intervals of scores and differences: what they hold in repeated draws, and that pairs are pairs."""

import numpy as np
import pytest

from gpt1_ds.tasks.comparison import Estimate, combine, estimate, mean_estimate, slope_weights
from gpt1_ds.tasks.metrics import measure

N = 600


def drawn(generator: np.random.Generator, right: np.ndarray, seeds: int, noise: float) -> list[np.ndarray]:
    """Answers (1 is right) of models that agree on which examples are hard; `noise` moves a whole seed."""
    return [
        (generator.random(N) < np.clip(right + generator.normal(0, noise), 0, 1)).astype(np.int64) for _ in range(seeds)
    ]


def known(by_seed: tuple[float, ...], variance: float, examples: bytes = b"") -> Estimate:
    """As if the jackknife had found this variance, over its 50 blocks."""
    return Estimate(by_seed, {examples: np.tile([1.0, -1.0], 25) * (variance / 49) ** 0.5})


def test_the_mean_is_the_metrics_difference() -> None:
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 2, N)
    first, second = ([generator.integers(0, 2, N) for _ in range(3)] for _ in range(2))
    for metric in ("accuracy", "matthews", "f1"):
        found = estimate(metric, gold, first, second, classes=2)
        assert found is not None
        pairs = zip(first, second, strict=True)
        expected = [measure(metric, gold, a, 2) - measure(metric, gold, b, 2) for a, b in pairs]
        np.testing.assert_allclose(found.by_seed, expected, rtol=0, atol=1e-12)


def test_accuracy_is_measured_as_the_other_metrics_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way for a mean gives what leaving blocks out one by one gives."""
    generator = np.random.default_rng(1)
    gold, answers = generator.integers(0, 3, 501), [generator.integers(0, 3, 501) for _ in range(2)]
    short = estimate("accuracy", gold, answers)
    monkeypatch.setattr("gpt1_ds.tasks.comparison.measure", lambda _, *both: measure("accuracy", *both))
    long = estimate("other", gold, answers)
    assert short is not None
    assert long is not None
    assert short.by_seed == pytest.approx(long.by_seed, abs=1e-15)
    assert short.example_variance == pytest.approx(long.example_variance, rel=1e-9)


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.05), (3, 0.02), (3, 0.05)])
def test_an_interval_holds_the_truth_19_times_in_20(seeds: int, noise: float) -> None:
    """Two models whose difference is 0.05: seeds and examples are drawn anew 400 times."""
    generator, held = np.random.default_rng(2), 0
    for _ in range(400):
        hard = generator.uniform(0.3, 0.7, N)
        answers = [drawn(generator, hard + shift, seeds, noise) for shift in (0.05, 0.0)]
        found = estimate("accuracy", np.ones(N, dtype=np.int64), *answers)
        assert found is not None
        low, high = found.interval()
        held += low <= 0.05 <= high
    assert held >= 380, "two seeds or three are few"


def test_pairs_are_surer_than_two_samples() -> None:
    """Examples that both get right or wrong move no difference."""
    generator = np.random.default_rng(3)
    gold = np.ones(N, dtype=np.int64)
    hard = (generator.random(N) < 0.5).astype(np.int64)
    other = hard.copy()
    other[:6] = 1 - other[:6]
    alone, paired = estimate("accuracy", gold, [hard]), estimate("accuracy", gold, [hard], [other])
    assert alone is not None
    assert paired is not None
    assert paired.example_variance < alone.example_variance / 10


def test_undefined_is_none_and_equals_are_a_point() -> None:
    gold = np.array([0.0, 1.0, 2.0, 3.0])
    assert estimate("pearson", gold, [np.zeros(4)]) is None
    same = estimate("accuracy", np.array([0, 1, 1]), [np.array([0, 1, 1])])
    assert same is not None
    assert same.interval() == (1.0, 1.0)


def test_an_average_is_over_tasks_seed_by_seed() -> None:
    both = mean_estimate([known((0.1, 0.3), 0.04, b"one"), known((0.3, 0.5), 0.08, b"other")])
    assert both.by_seed == pytest.approx((0.2, 0.4))
    assert both.example_variance == pytest.approx(0.03)


def test_the_same_examples_move_together() -> None:
    """Twice the same answers are as sure as once; answers to other examples are surer."""
    generator = np.random.default_rng(4)
    gold, other = generator.integers(0, 2, N), generator.integers(0, 2, N)
    answers = [generator.integers(0, 2, N)]
    once, elsewhere = estimate("accuracy", gold, answers), estimate("accuracy", other, answers)
    assert once is not None
    assert elsewhere is not None
    assert mean_estimate([once, once]).example_variance == pytest.approx(once.example_variance)
    apart = (once.example_variance + elsewhere.example_variance) / 4
    assert mean_estimate([once, elsewhere]).example_variance == pytest.approx(apart)
    assert combine([once, once], [1, -1]).example_variance == pytest.approx(0, abs=1e-12)


def test_few_seeds_widen() -> None:
    """Student's quantile of 2 degrees of freedom is 4.3; the examples' part is added, not averaged in."""
    low, high = known((0.0, 0.01, 0.02), 0).interval()
    assert high - low == pytest.approx(2 * 4.303 * 0.01 / 3**0.5, rel=1e-3)
    low, high = known((0.0, 0.01, 0.02), 1e-4).interval()
    assert high - low == pytest.approx(2 * ((4.303 * 0.01 / 3**0.5) ** 2 + (2.010 * 0.01) ** 2) ** 0.5, rel=1e-3)


def test_a_slope_is_per_doubling() -> None:
    counts = [250, 1000, 4000]
    rising = [known((0.1 * doublings, 0.3), 0.01, bytes([doublings])) for doublings in (0, 2, 4)]
    slope = combine(rising, slope_weights(counts))
    assert slope.by_seed == pytest.approx((0.1, 0.0))
    assert slope.example_variance == pytest.approx(0.01 * (2 * 0.25**2))
