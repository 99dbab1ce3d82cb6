"""LAMB and Adafactor on every kind of layout: the numbers of one process, equal copies, and checkpoints that any layout
resumes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tools.families import FAMILIES
from tools.layouts import ONE, Layout, Trace, _layout, compare, trace
from tools.resume_matrix import relative, resume_on, save_on

NAMES = ("lamb", "adafactor")
STEPS, SAVED, MORE = 6, 6, 2  # the warm-up takes five
CHOSEN = {
    "lamb": [_layout(2, "zero0"), _layout(4, "tp2 zero3")],
    "adafactor": [_layout(4, "pp2"), _layout(4, "tp2 zero3")],
}
SHARED, BF16 = _layout(4, "pp2 tp2"), _layout(2, "pp2")
RESUMED = [_layout(4, "pp2"), _layout(4, "tp2 zero3")]


def words(name: str) -> list[str]:
    return [f"optimizer.name={name}"]


@pytest.fixture(scope="module")
def alone(tiny_data: Path) -> dict[str, Trace]:
    return {name: trace(ONE, tiny_data, STEPS, words(name)) for name in NAMES}


def check(one: Trace, other: Trace) -> None:
    apart = compare(one, other)
    assert apart.same_batches
    assert apart.loss <= 2e-6
    assert apart.norm <= 1e-5
    assert apart.weights <= 1e-4, apart.worst


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in NAMES for layout in CHOSEN[name]],
    ids=lambda one: one if isinstance(one, str) else f"{one.ranks}-{one.name.replace(' ', '-')}",
)
def test_fp32_equals_one_process(name: str, layout: Layout, alone: dict[str, Trace], tiny_data: Path) -> None:
    check(alone[name], trace(layout, tiny_data, STEPS, words(name)))


def test_blocks_that_two_stages_share_equal_one_process(span_data: Path) -> None:
    family = [*FAMILIES["t5_shared"], *words("adafactor")]
    check(trace(ONE, span_data, STEPS, family), trace(SHARED, span_data, STEPS, family))


def test_bf16_stays_close_to_fp32(alone: dict[str, Trace], tiny_data: Path) -> None:
    apart = compare(alone["adafactor"], trace(BF16, tiny_data, STEPS, [*words("adafactor"), "train.precision=bf16"]))
    assert apart.same_batches
    assert 0 < apart.loss <= 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_copies_on_stages_that_cut_them_otherwise_are_equal_to_the_bit(name: str, tiny_data: Path) -> None:
    """The head's stage cuts the words in another row, where sums of so few numbers of this width are rounded."""
    small = ["model.layers=2", "model.width=24", "model.heads=2", "model.context=16", "train.global_batch=8"]
    small += ["train.micro_batch=4", "parallel.pipeline=2", f"data.path={tiny_data}", *words(name)]
    assert launch.run("tests.helpers.engines:differences_here", (small,), 4) == [""] * 4


@pytest.mark.slow
def test_a_layout_resumes_its_own_checkpoint_to_the_bit_and_any_other(tiny_data: Path, tmp_path: Path) -> None:
    """Adafactor; LAMB's moments are AdamW's."""
    extra = words("adafactor")
    saved = [save_on(layout, tiny_data, tmp_path, "fp32", SAVED, extra) for layout in RESUMED]
    for number, layout in enumerate(RESUMED):
        wanted = trace(layout, tiny_data, SAVED + MORE, extra).losses[SAVED:]
        resumed = resume_on(layout, tiny_data, saved, "fp32", SAVED, MORE, extra)
        assert [wrong for _, wrong in resumed] == ["", ""]
        assert resumed[number][0] == wanted
        assert relative(resumed[1 - number][0], wanted) <= 1e-6
