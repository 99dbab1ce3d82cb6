"""Promise 1 for other families: every layout has the numbers of one process. `tools/layouts.py --family` has all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.config import load
from gpt1_ds.plan.stages import stages
from tools.families import FAMILIES
from tools.layouts import LAYOUTS, ONE, RECIPE, Layout, Trace, compare, trace

STEPS = 6
NAMES = ("zero3 recompute", "tp2 pp2 sequence recompute")  # between them, every way to cut a model
ROWS = {"gpt2": ["data.text=document_sentences"]}  # a causal model of rows that padding fills; windows: test_layouts
CHOSEN = [layout for layout in LAYOUTS if layout.name in NAMES]


@pytest.fixture(scope="module", params=["gpt2", "bert", "roberta", "t5", "t5_shared", "prefix"])
def one(request: pytest.FixtureRequest, sentence_data: Path, span_data: Path) -> tuple[list[str], Path, Trace]:
    family = [*FAMILIES[request.param], *ROWS.get(request.param, [])]
    data = span_data if request.param in ("t5", "t5_shared", "prefix") else sentence_data
    return family, data, trace(ONE, data, STEPS, family)


@pytest.mark.parametrize("layout", CHOSEN, ids=lambda layout: layout.name.replace(" ", "-"))
def test_it_equals_one_process(layout: Layout, one: tuple[list[str], Path, Trace]) -> None:
    family, data, alone = one
    there = trace(layout, data, STEPS, family)
    config = load([], [*RECIPE, *layout.overrides, *family])
    assert there.stages == {(stage.number, len(stage.layers)) for stage in stages(config, 500)}, "cut as planned"
    apart = compare(alone, there)
    assert apart.same_batches
    assert not there.drift
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4, apart.worst
