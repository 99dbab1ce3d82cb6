"""Promise 1: one model, every layout, the same numbers (dropout on, clipping that bites)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.layouts import LAYOUTS, ONE, Layout, Trace, compare, trace

STEPS = 8  # the warm-up and three steps at the full rate: what is wrong shows at once or grows with every step
BF16 = [layout for layout in LAYOUTS if layout.name in ("dp2", "tp2 pp2", "zero3", "tp2 sequence", "pp2 recompute mb2")]
SMOOTHED = [layout for layout in LAYOUTS if layout.name in ("tp2", "tp2 pp2", "zero3") and layout.ranks > 1]
FP16_ARGUMENTS = ["train.precision=fp16"]
FP16 = [layout for layout in LAYOUTS if layout.name in ("dp2", "pp2", "tp2 zero2")]


@pytest.fixture(scope="module")
def one(tiny_data: Path) -> Trace:
    return trace(ONE, tiny_data, STEPS)


@pytest.fixture(scope="module")
def alone(tiny_data: Path) -> Trace:
    return trace(ONE, tiny_data, STEPS, FP16_ARGUMENTS)


def test_training_learns(tiny_data: Path) -> None:
    one = trace(ONE, tiny_data, 20)
    assert one.losses[-1] < one.losses[0] - 0.5
    assert min(one.norms) > 0.5, "clipping must bite for the norm to matter"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_fp32_equals_one_process(layout: Layout, one: Trace, tiny_data: Path) -> None:
    apart = compare(one, trace(layout, tiny_data, STEPS))
    assert apart.same_batches
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4, apart.worst


@pytest.fixture(scope="module")
def smoothed(tiny_data: Path) -> Trace:
    return trace(ONE, tiny_data, STEPS, ["train.label_smoothing=0.1"])


@pytest.mark.parametrize("layout", SMOOTHED, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_smoothed_labels_equal_one_process(layout: Layout, smoothed: Trace, one: Trace, tiny_data: Path) -> None:
    assert smoothed.losses[-1] > one.losses[-1] + 0.01, "it learns something else"
    apart = compare(smoothed, trace(layout, tiny_data, STEPS, ["train.label_smoothing=0.1"]))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4, apart.worst


@pytest.mark.parametrize("layout", BF16, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_bf16_stays_close_to_fp32(layout: Layout, one: Trace, tiny_data: Path) -> None:
    apart = compare(one, trace(layout, tiny_data, STEPS, ["train.precision=bf16"]))
    assert apart.same_batches
    assert 0 < apart.loss <= 1e-2


@pytest.mark.parametrize("layout", FP16, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_fp16_layouts_skip_and_train_alike(layout: Layout, alone: Trace, tiny_data: Path) -> None:
    other = trace(layout, tiny_data, STEPS, FP16_ARGUMENTS)
    assert [norm == float("inf") for norm in alone.norms] == [norm == float("inf") for norm in other.norms]
    assert max(abs(a - b) for a, b in zip(alone.losses, other.losses, strict=True)) <= 1e-2
