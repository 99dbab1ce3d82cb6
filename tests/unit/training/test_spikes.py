"""What is taken for a spike, and what is left alone."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import RunDir, read_jsonl, why_diverged
from gpt1_ds.config import load
from gpt1_ds.config.sections import GuardConfig
from gpt1_ds.training.spike_policy import NORM_NOT_FINITE, SpikePolicy, Window, divergence, extended, spike
from gpt1_ds.training.state import TrainingState


def clean_curve(steps: int, seed: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of a run that goes well: a falling power law, batch noise."""
    draw = np.random.default_rng(seed)
    step = np.arange(1, steps + 1)
    loss = 3.0 + 6.0 * step**-0.3 + draw.normal(0, 0.05, steps)
    norm = (0.5 + 2.0 * step**-0.5) * np.exp(0.15 * draw.standard_t(12, steps))
    return list(zip(loss.tolist(), norm.tolist(), strict=True))


def window_of(settings: GuardConfig, curve: list[tuple[float, float]]) -> Window:
    window: Window = ()
    for loss, norm in curve:
        window = extended(settings, window, loss, norm)
    return window


def test_ten_thousand_clean_steps_raise_no_alarm() -> None:
    settings, window = GuardConfig(z=8), ()  # type: tuple[GuardConfig, Window]
    for loss, norm in clean_curve(10_000, 1):
        assert spike(settings, window, loss, norm) is None
        window = extended(settings, window, loss, norm)


def test_spikes_of_loss_and_of_norm_are_named() -> None:
    settings, curve = GuardConfig(z=8), clean_curve(1_000, 2)
    window = window_of(settings, curve)
    loss, norm = curve[-1]
    assert "the loss is" in str(spike(settings, window, loss + 1, norm))
    assert "the gradient norm is" in str(spike(settings, window, loss, norm * 20))
    assert spike(settings, window, loss - 1, norm / 20) is None, "only upwards"


def test_what_is_not_finite_is_always_named() -> None:
    assert spike(GuardConfig(), (), 5.0, 1e9) is None, "z=0: nothing finite is judged"
    assert spike(GuardConfig(), (), math.nan, 1.0) == "the loss is not finite"
    assert spike(GuardConfig(), (), 5.0, math.inf) == "the gradients are not finite"


def test_the_window_survives_a_checkpoint() -> None:
    window = window_of(GuardConfig(z=8, window=32), clean_curve(100, 3))
    assert len(window) == 32
    state = TrainingState(step=100, window=window, lowest_validation_loss=3.5)
    assert TrainingState.from_manifest(state.to_manifest(), math.inf) == state


def test_validation_loss_that_rises_is_a_divergence() -> None:
    settings = GuardConfig(rise=0.5)
    assert divergence(settings, 6.0, 6.4) is None, "hardly above a model that knows nothing"
    assert divergence(settings, 4.0, 4.4) is None
    assert divergence(settings, 4.0, 4.6) == "held-out loss 4.6 is more than guard.rise=0.5 above its best, 4"
    assert divergence(GuardConfig(), 6.0, 9.0) is None, "0: off"
    for guard in (settings, GuardConfig()):
        assert divergence(guard, 4.0, math.nan) == divergence(guard, 4.0, math.inf) == "the held-out loss is not finite"


@pytest.mark.parametrize("here", [None, "the loss is not finite"])
def test_ranks_answer_for_the_first_reason_that_any_of_them_has(here: str | None) -> None:
    """In fp16 gradients that are not finite are the search for the loss scale, which is not recorded. A rank with a
    reason of its own would record a spike, and wait there for the others.
    """

    def gather(mine: object) -> list[object]:
        assert mine == here, "no other collective is entered"
        return [NORM_NOT_FINITE, mine]

    engine: Any = SimpleNamespace(groups=SimpleNamespace(rank=1, gather=gather))
    nothing: Any = None
    policy = SpikePolicy(load([], ["train.precision=fp16"]), engine, nothing, nothing, nothing)
    assert not policy.answer(3, here), "the step is skipped"


@pytest.mark.parametrize(("saved", "says"), [(True, "the last checkpoint is intact"), (False, "nothing was saved yet")])
def test_what_is_left_is_said(saved: bool, says: str, tmp_path: Path) -> None:
    run_dir, nothing = RunDir(tmp_path), None  # type: RunDir, Any
    if saved:
        run_dir.checkpoint(5).mkdir(parents=True)
    engine: Any = SimpleNamespace(groups=SimpleNamespace(gather=lambda mine: [mine]), micro_losses=[])
    policy = SpikePolicy(load([], []), engine, run_dir, nothing, nothing)
    assert f"; {says}. " in policy._explanation(7, "the loss is not finite")


@pytest.mark.parametrize(("action", "ends"), [("skip", 6), ("rollback", 6), ("raise", 1)])
def test_a_run_that_cannot_leave_a_spike_says_that_it_diverged(action: str, ends: int, tmp_path: Path) -> None:
    groups = SimpleNamespace(rank=0, gather=lambda mine: [mine])
    engine: Any = SimpleNamespace(groups=groups, micro_losses=[], filter_updates=lambda rejects: None)
    shape: Any = SimpleNamespace(global_batch=1, rows=lambda: [])
    policy = SpikePolicy(
        load([], [f"guard.on_spike={action}"]), engine, RunDir(tmp_path), lambda _: shape, lambda *_: []
    )
    for step in range(1, ends):
        policy.answer(step, "the loss is not finite")
        assert why_diverged(list(read_jsonl(tmp_path / "events.jsonl"))) == ""
    with pytest.raises(TrainingError, match="the loss is not finite"):
        policy.answer(ends, "the loss is not finite")
    found = why_diverged(list(read_jsonl(tmp_path / "events.jsonl")))
    assert found == f"step {ends}: the loss is not finite{' (6 steps in a row)' if ends > 1 else ''}"
