"""Muon on every kind of layout: the numbers of one process, equal copies, and checkpoints that any layout resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tools.families import FAMILIES
from tools.layouts import LAYOUTS, ONE, Layout, Trace, _layout, compare, trace
from tools.resume_matrix import relative, resume_on, save_on

MUON = ["optimizer.name=muon"]
STEPS, SAVED, MORE = 6, 6, 2  # the warm-up takes five
NAMES = ("zero0", "zero2", "zero3", "pp3", "tp2 zero3", "tp2 pp2 sequence recompute")
CHOSEN = [layout for layout in LAYOUTS if layout.name in NAMES and layout.ranks > 1]
SHARED = _layout(4, "pp2 tp2")
BF16 = [layout for layout in LAYOUTS if layout.name in ("tp2 zero3", "tp2 pp2")]
RESUMED = [_layout(2, "zero0"), _layout(2, "pp2"), _layout(4, "tp2 zero3")]


@pytest.fixture(scope="module")
def one(tiny_data: Path) -> Trace:
    return trace(ONE, tiny_data, STEPS, MUON)


def check(one: Trace, other: Trace) -> None:
    apart = compare(one, other)
    assert apart.same_batches
    assert apart.loss <= 2e-6
    assert apart.norm <= 1e-5
    assert apart.weights <= 1e-4, apart.worst


@pytest.mark.parametrize("layout", CHOSEN, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_fp32_equals_one_process(layout: Layout, one: Trace, tiny_data: Path) -> None:
    check(one, trace(layout, tiny_data, STEPS, MUON))


def test_blocks_that_two_stages_share_equal_one_process(span_data: Path) -> None:
    """Each stage makes their updates itself; gated matrices and those of cross attention are cut in halves."""
    family = [*FAMILIES["t5_shared"], *MUON]
    check(trace(ONE, span_data, STEPS, family), trace(SHARED, span_data, STEPS, family))


@pytest.mark.parametrize("layout", BF16, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_bf16_stays_close_to_fp32(layout: Layout, one: Trace, tiny_data: Path) -> None:
    apart = compare(one, trace(layout, tiny_data, STEPS, [*MUON, "train.precision=bf16"]))
    assert apart.same_batches
    assert 0 < apart.loss <= 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("layout", RESUMED, ids=lambda layout: f"{layout.ranks}-{layout.name.replace(' ', '-')}")
def test_any_layout_resumes(layout: Layout, saved: list[Path], uninterrupted: list[float], tiny_data: Path) -> None:
    for losses, wrong in resume_on(layout, tiny_data, saved, "fp32", SAVED, MORE, MUON):
        assert not wrong
        assert relative(losses, uninterrupted) <= 1e-6


@pytest.fixture(scope="module")
def uninterrupted(tiny_data: Path) -> list[float]:
    return trace(ONE, tiny_data, SAVED + MORE, MUON).losses[SAVED:]


@pytest.fixture(scope="module")
def saved(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("muon")
    return [save_on(layout, tiny_data, folder, "fp32", SAVED, MUON) for layout in RESUMED]


def test_copies_are_equal_to_the_bit(tiny_data: Path) -> None:
    words = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "train.global_batch=8"]
    words += ["train.micro_batch=4", "parallel.tensor=2", "parallel.zero=0", f"data.path={tiny_data}", *MUON]
    assert launch.run("tests.helpers.engines:differences_here", (words,), 4) == [""] * 4
