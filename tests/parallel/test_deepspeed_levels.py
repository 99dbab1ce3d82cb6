"""train.deepspeed_patches: what each level computes beside one process with all; settings that may be given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.config.parallel import DEEPSPEED_KEYS, ZERO_KEYS
from tools.layouts import LAYOUTS, ONE, Trace, compare, trace

STEPS = 4
HEAD_ALONE = ["model.layers=2", "model.width=16"]  # the last of two stages holds the tied head and nothing else
VALUES = {
    **dict.fromkeys(DEEPSPEED_KEYS, "true"),
    "steps_per_print": "1",
    **dict.fromkeys(ZERO_KEYS, "2000"),
}
by_name = {(layout.name, layout.ranks): layout for layout in LAYOUTS}


@pytest.fixture(scope="module")
def traced(tiny_data: Path) -> Callable[..., Trace]:
    """Runs a layout of so many ranks with further arguments, or one process where there are none."""
    found: dict[Any, Trace] = {}

    def run(name: str = "", ranks: int = 1, *arguments: str) -> Trace:
        key = name, ranks, arguments
        if key not in found:
            layout = by_name[name, ranks] if name else ONE
            found[key] = trace(layout, tiny_data, STEPS, arguments)
        return found[key]

    return run


@pytest.mark.parametrize(("name", "ranks"), [("dp2", 2), ("zero3", 2), ("tp2", 2), ("pp2", 2)])
def test_without_patches_fp32_is_what_it_is(name: str, ranks: int, traced: Callable[..., Trace]) -> None:
    apart = compare(traced(), traced(name, ranks, "train.deepspeed_patches=none"))
    assert apart.same_batches
    assert max(apart.loss, apart.norm) < 2e-6
    assert apart.weights < 1e-5


@pytest.mark.parametrize("patches", ["fixes", "none"])
def test_bf16_has_the_bits_of_all_patches_but_for_clipping(patches: str, traced: Callable[..., Trace]) -> None:
    arguments = ("train.precision=bf16",)
    for clip, apart in (("0", 0.0), ("0.5", 5e-5)):
        found, wanted = (
            traced("dp2", 2, *arguments, f"optimizer.clip={clip}", *more).losses
            for more in ((f"train.deepspeed_patches={patches}",), ())
        )
        assert found == pytest.approx(wanted, rel=0, abs=apart)


@pytest.mark.parametrize(("patches", "is_right"), [("fixes", True), ("none", False)])
def test_only_fixes_keep_tied_weights_of_fp16_stages_equal(
    patches: str, is_right: bool, traced: Callable[..., Trace]
) -> None:
    """The last stage's copy of the embedding learns from itself alone, as DeepSpeed comes."""
    arguments = ("train.precision=fp16",)
    apart = compare(traced("pp2", 2, *arguments), traced("pp2", 2, *arguments, f"train.deepspeed_patches={patches}"))
    assert (apart.weights < 0.01) == is_right, apart


def test_fixes_keep_a_stage_of_the_head_alone_from_hanging(traced: Callable[..., Trace]) -> None:
    one, two = traced("", 1, *HEAD_ALONE), traced("pp2", 2, *HEAD_ALONE, "train.deepspeed_patches=fixes")
    assert sorted(layers for _, layers in two.stages)[0] == 1
    assert two.losses == pytest.approx(one.losses, abs=2e-6)


@pytest.mark.parametrize(("name", "ranks"), [("", 1), ("zero3", 2)])
def test_settings_that_may_be_given_change_no_number(name: str, ranks: int, traced: Callable[..., Trace]) -> None:
    zero = ", ".join(f"{key}: {VALUES[key]}" for key in ZERO_KEYS)
    others = ", ".join(f"{key}: {VALUES[key]}" for key in DEEPSPEED_KEYS)
    with_all = traced(name, ranks, f"parallel.deepspeed={{{others}, zero_optimization: {{{zero}}}}}")
    plain = traced(name, ranks)
    assert with_all.losses == plain.losses
    assert with_all.norms == pytest.approx(plain.norms, rel=1e-12)  # ZeRO 3 adds up those of its sub-groups in fp64
