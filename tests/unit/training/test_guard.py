"""What the guard takes for a spike, and what it leaves alone."""

import math

import numpy as np

from gpt1_ds.config.guard import GuardConfig
from gpt1_ds.training.guard import Guard


def clean_curve(steps: int, seed: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of a run that goes well: a falling power law, batch noise."""
    draw = np.random.default_rng(seed)
    step = np.arange(1, steps + 1)
    loss = 3.0 + 6.0 * step**-0.3 + draw.normal(0, 0.05, steps)
    norm = (0.5 + 2.0 * step**-0.5) * np.exp(0.15 * draw.standard_t(12, steps))
    return list(zip(loss.tolist(), norm.tolist(), strict=True))


def test_ten_thousand_clean_steps_raise_no_alarm() -> None:
    guard = Guard(GuardConfig(z=8))
    for loss, norm in clean_curve(10_000, 1):
        assert guard.problem(loss, norm) is None
        guard.accept(loss, norm)


def test_spikes_of_loss_and_of_norm_are_named() -> None:
    guard = Guard(GuardConfig(z=8))
    curve = clean_curve(1_000, 2)
    for loss, norm in curve:
        guard.accept(loss, norm)
    loss, norm = curve[-1]
    assert "the loss is" in str(guard.problem(loss + 1, norm))
    assert "the gradient norm is" in str(guard.problem(loss, norm * 20))
    assert guard.problem(loss - 1, norm / 20) is None, "only upwards"


def test_what_is_not_finite_is_always_named() -> None:
    guard = Guard(GuardConfig())
    assert guard.problem(5.0, 1e9) is None, "z=0: nothing finite is judged"
    assert guard.problem(math.nan, 1.0) == "the loss is not finite"
    assert guard.problem(5.0, math.inf) == "the gradients are not finite"


def test_the_window_survives_a_checkpoint() -> None:
    guard, other = Guard(GuardConfig(z=8, window=32)), Guard(GuardConfig(z=8, window=32))
    for loss, norm in clean_curve(100, 3):
        guard.accept(loss, norm)
    other.restore(guard.state())
    assert len(other.window) == 32
    assert other.window == guard.window


def test_held_out_loss_that_rises_is_a_divergence() -> None:
    guard = Guard(GuardConfig(rise=0.5), uniform=6.0)
    assert guard.risen(6.4) is None, "hardly above a model that knows nothing"
    assert guard.risen(4.0) is None
    assert guard.risen(4.4) is None
    assert guard.risen(4.6) == "held-out loss 4.6 is more than guard.rise=0.5 above its best, 4"
    assert "nan" in str(guard.risen(math.nan))
    assert Guard(GuardConfig(), uniform=6.0).risen(9.0) is None, "0: off"
