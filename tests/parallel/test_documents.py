"""Documents that do not see one another: layouts have the numbers of one process, in training and held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.families import FAMILIES
from tools.layouts import LAYOUTS, ONE, Layout, Trace, compare, trace

STEPS = 4
MASKED = ["data.documents=masked"]
# With its usual epsilon, Adam scales the rounding of a gradient of nearly zero up. On a CPU with AMX one such weight of
# T5 makes its matrix differ by 1.3e-4, also with tensor parallelism alone.
RECIPES = {"gpt1": [*FAMILIES["gpt1"], *MASKED], "t5": [*FAMILIES["t5"], *MASKED, "optimizer.eps=1e-6"]}
CHOSEN = {
    "gpt1": [(2, "tp2 sequence"), (2, "zero3"), (2, "pp2")],
    "t5": [(4, "tp2 pp2 sequence recompute")],  # its facts name three kinds of places
}
CASES = [
    pytest.param(family, layout, id=f"{family}-{layout.name.replace(' ', '-')}")
    for family, chosen in CHOSEN.items()
    for layout in LAYOUTS
    if (layout.ranks, layout.name) in chosen
]


@pytest.fixture(scope="module")
def alone(short_documents: Path) -> dict[str, Trace]:
    data = short_documents / "spans"
    return {family: trace(ONE, data, STEPS, RECIPES[family]) for family in CHOSEN}


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_it_equals_one_process(family: str, layout: Layout, alone: dict[str, Trace], short_documents: Path) -> None:
    apart = compare(alone[family], trace(layout, short_documents / "spans", STEPS, RECIPES[family]))
    assert apart.same_batches
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4, apart.worst


def test_joined_documents_have_the_same_batches_and_other_losses(
    alone: dict[str, Trace], short_documents: Path
) -> None:
    joined = trace(ONE, short_documents / "spans", STEPS)
    assert joined.fingerprints == alone["gpt1"].fingerprints
    assert abs(joined.losses[0] - alone["gpt1"].losses[0]) > 1e-4
