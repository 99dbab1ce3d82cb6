"""LAMB, Adafactor and Muon on every kind of layout: the numbers of one process, equal copies, and checkpoints that any
layout resumes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tools.families import FAMILIES
from tools.layouts import LAYOUTS, ONE, Layout, Trace, _layout, compare, trace
from tools.resume_matrix import relative, resume_on, save_on

NAMES = ("lamb", "adafactor", "muon")
OF_MUON = ("zero0", "zero2", "zero3", "pp3", "tp2 zero3", "tp2 pp2 sequence recompute")
STEPS, SAVED, MORE = 6, 6, 2  # the warm-up takes five
CHOSEN = {
    "lamb": [_layout(2, "zero0"), _layout(4, "tp2 zero3")],
    "adafactor": [_layout(4, "pp2"), _layout(4, "tp2 zero3")],
    "muon": [layout for layout in LAYOUTS if layout.name in OF_MUON and layout.ranks > 1],
}
SHARED = _layout(4, "pp2 tp2")
BF16 = [("adafactor", _layout(2, "pp2")), ("muon", _layout(4, "tp2 zero3")), ("muon", _layout(4, "tp2 pp2"))]
COPIED = {  # the head's stage cuts the words in another row, where sums of so few numbers of this width are rounded
    **{name: ["model.width=24", "parallel.pipeline=2"] for name in ("lamb", "adafactor")},
    "muon": ["model.width=32", "parallel.tensor=2", "parallel.zero=0"],
}
RESUMED = [_layout(4, "pp2"), _layout(4, "tp2 zero3")]
MUONS = [_layout(2, "zero0"), _layout(2, "pp2"), _layout(4, "tp2 zero3")]


def arguments(name: str) -> list[str]:
    return [f"optimizer.name={name}"]


@pytest.fixture(scope="module")
def alone(tiny_data: Path) -> dict[str, Trace]:
    return {name: trace(ONE, tiny_data, STEPS, arguments(name)) for name in NAMES}


def check(one: Trace, other: Trace) -> None:
    apart = compare(one, other)
    assert apart.same_batches
    assert apart.loss <= 2e-6
    assert apart.norm <= 1e-5
    assert apart.weights <= 1e-4, apart.worst


def shown(one: str | Layout) -> str:
    return one if isinstance(one, str) else f"{one.ranks}-{one.name.replace(' ', '-')}"


@pytest.mark.parametrize(("name", "layout"), [(name, one) for name in NAMES for one in CHOSEN[name]], ids=shown)
def test_fp32_equals_one_process(name: str, layout: Layout, alone: dict[str, Trace], tiny_data: Path) -> None:
    check(alone[name], trace(layout, tiny_data, STEPS, arguments(name)))


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_blocks_that_two_stages_share_equal_one_process(name: str, span_data: Path) -> None:
    """Each stage makes their updates itself; gated matrices and those of cross attention are cut in halves."""
    family = [*FAMILIES["t5_shared"], *arguments(name)]
    check(trace(ONE, span_data, STEPS, family), trace(SHARED, span_data, STEPS, family))


@pytest.mark.parametrize(("name", "layout"), BF16, ids=shown)
def test_bf16_stays_close_to_fp32(name: str, layout: Layout, alone: dict[str, Trace], tiny_data: Path) -> None:
    apart = compare(alone[name], trace(layout, tiny_data, STEPS, [*arguments(name), "train.precision=bf16"]))
    assert apart.same_batches
    assert 0 < apart.loss <= 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_equal_to_the_bit(name: str, tiny_data: Path) -> None:
    small = ["model.layers=2", "model.heads=2", "model.context=16", "train.global_batch=8", "train.micro_batch=4"]
    small += [f"data.path={tiny_data}", *COPIED[name], *arguments(name)]
    assert launch.run("tests.helpers.engines:differences_here", (small,), 4) == [""] * 4


@pytest.mark.slow
def test_a_layout_resumes_its_own_checkpoint_to_the_bit_and_any_other(tiny_data: Path, tmp_path: Path) -> None:
    """Adafactor; LAMB's moments are AdamW's."""
    extra = arguments("adafactor")
    saved = [save_on(layout, tiny_data, tmp_path, "fp32", SAVED, extra) for layout in RESUMED]
    for number, layout in enumerate(RESUMED):
        wanted = trace(layout, tiny_data, SAVED + MORE, extra).losses[SAVED:]
        resumed = resume_on(layout, tiny_data, saved, "fp32", SAVED, MORE, extra)
        assert [wrong for _, wrong in resumed] == ["", ""]
        assert resumed[number][0] == wanted
        assert relative(resumed[1 - number][0], wanted) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("layout", MUONS, ids=shown)
def test_any_layout_resumes_muons(
    layout: Layout, saved: list[Path], uninterrupted: list[float], tiny_data: Path
) -> None:
    for losses, wrong in resume_on(layout, tiny_data, saved, "fp32", SAVED, MORE, arguments("muon")):
        assert not wrong
        assert relative(losses, uninterrupted) <= 1e-6


@pytest.fixture(scope="module")
def uninterrupted(tiny_data: Path) -> list[float]:
    return trace(ONE, tiny_data, SAVED + MORE, arguments("muon")).losses[SAVED:]


@pytest.fixture(scope="module")
def saved(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("muon")
    return [save_on(layout, tiny_data, folder, "fp32", SAVED, arguments("muon")) for layout in MUONS]
