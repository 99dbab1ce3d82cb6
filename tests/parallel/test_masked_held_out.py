"""Held-out loss and accuracy of masked text: those of a plain computation, on every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.launcher import launch
from tools.families import FAMILIES

SMALL = [
    *("model.layers=2", "model.width=32", "model.heads=4", "model.context=32", "train.global_batch=8"),
    *("train.micro_batch=2", *FAMILIES["bert"]),
]
WINDOWS = ["data.text=windows", "objective.next_sentence=false", "model.segments=0"]
LAYOUTS = {
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "dp2": (2, ["train.micro_batch=4"]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "train.micro_batch=8"]),
}
MEASURES = ("loss", "masked_accuracy", "pair_loss", "pair_accuracy")


@pytest.fixture(scope="module", params=["windows", "pairs"])
def one(request: pytest.FixtureRequest, sentence_data: Path) -> tuple[list[str], dict[str, Any]]:
    arguments = [*SMALL, f"data.path={sentence_data}", *(WINDOWS if request.param == "windows" else [])]
    return arguments, measured(arguments, 1)


def measured(arguments: list[str], ranks: int) -> dict[str, Any]:
    """What every rank says, which is the same."""
    found = launch.run("tests.helpers.held_out:measure", (arguments, ranks == 1), ranks)
    assert found == [found[0]] * ranks
    return found[0]


def test_one_process_equals_a_plain_computation(one: tuple[list[str], dict[str, Any]]) -> None:
    _, found = one
    wanted = found["plain"]
    assert 0.02 < wanted["masked_accuracy"] < 0.5, "some are right"
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    assert ("pair_loss" in wanted) == (found["pair_loss"] is not None)
    assert found["bits_per_byte"] is None
    assert 0 < found["mask_deviation"] < 0.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_say_the_same(layout: str, one: tuple[list[str], dict[str, Any]]) -> None:
    arguments, alone = one
    ranks, overrides = LAYOUTS[layout]
    found = measured([*arguments, *overrides], ranks)
    names = [name for name in MEASURES if alone[name] is not None]
    assert {name: found[name] for name in names} == pytest.approx({name: alone[name] for name in names}, rel=1e-5)
    assert found["mask_deviation"] == pytest.approx(alone["mask_deviation"], rel=1e-3), "a difference of losses"
