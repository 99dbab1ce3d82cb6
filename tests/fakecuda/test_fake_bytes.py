"""What ranks send in a step is what the planner says: of one layout after another, a rank of each pipeline stage."""

from __future__ import annotations

import pytest

from gpt1_ds.engine.process_groups import Layout
from gpt1_ds.plan.communication import overlaps
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS
from tools.fakecuda import ranks, steps
from tools.fakecuda.symmetry import SCALARS, sent, unplanned
from tools.layouts import RECIPE

WIDE = ["model.width=768", "model.heads=12", "model.vocab_size=40000", "model.layers=2"]  # some matrices are large
TWO_BILLION = ["model.width=5120", "model.heads=40", "model.vocab_size=40000", "model.layers=6"]
LAYOUTS = {
    "data": (4, ["parallel.zero=0"]),
    "ZeRO 1, fp32": (4, []),
    "ZeRO 1, bf16": (4, ["train.precision=bf16", "train.micro_batch=2"]),
    "ZeRO 1, fp16": (4, ["train.precision=fp16", "train.micro_batch=2"]),
    "ZeRO 2, bf16": (4, ["train.precision=bf16", "train.micro_batch=2", "parallel.zero=2"]),
    "ZeRO 2, fp16": (4, ["train.precision=fp16", "train.micro_batch=2", "parallel.zero=2"]),
    "ZeRO 3, bf16": (4, [*WIDE, "train.precision=bf16", "train.micro_batch=2", "parallel.zero=3"]),
    "ZeRO 3, fp16": (4, [*WIDE, "train.precision=fp16", "parallel.zero=3", "train.recompute=block"]),
    "tensor": (2, ["parallel.tensor=2"]),
    "tensor, recompute": (4, ["parallel.tensor=4", "train.precision=bf16", "train.recompute=block"]),
    "tensor, ZeRO 2": (4, ["parallel.tensor=2", "train.precision=bf16", "parallel.zero=2"]),
    "sequence": (2, ["parallel.tensor=2", "parallel.sequence=true"]),
    "sequence, recompute, ZeRO 3": (
        4,
        ["parallel.tensor=2", "parallel.sequence=true", "train.recompute=block", "parallel.zero=3", *WIDE],
    ),
    "pipeline": (4, ["parallel.pipeline=4"]),
    "pipeline, data, bf16": (4, ["parallel.pipeline=2", "train.precision=bf16"]),
    "all": (8, ["parallel.tensor=2", "parallel.pipeline=2", "train.precision=bf16"]),
    "all, sequence, recompute": (
        8,
        [
            *("parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true", "train.recompute=block"),
            *("train.precision=bf16", "train.micro_batch=2"),
        ],
    ),
}


@pytest.mark.parametrize(("world", "overrides"), LAYOUTS.values(), ids=LAYOUTS)
def test_bytes_are_the_plans(world: int, overrides: list[str]) -> None:
    overrides = [*RECIPE, *overrides]
    config = steps.configuration(overrides, world)
    tensor, pipeline = config.parallel.tensor, config.parallel.pipeline
    layout = Layout(tensor, pipeline, world // (tensor * pipeline))
    step = steps.step if config.parallel.pipelined or config.parallel.zero == 3 else steps.warm_step
    found = {rank: ranks.run(step, overrides, world, rank=rank, world=world) for rank in layout.members(0, "pipeline")}
    assert unplanned(config, world, {rank: step.counts.collectives for rank, step in found.items()}) == []
    if config.parallel.zero == 0 or (config.parallel.zero == 1 and config.train.precision == "bf16"):
        data = layout.members(0, "data")  # here a phase of the engine tells when a reduction begins
        reducing = [call for call in found[0].counts.collectives if [*call.ranks] == data and "reduce" in call.kind]
        under = any(call.bytes > SCALARS and call.phase.startswith("backward") for call in reducing)
        assert under == (overlaps("cuda") and layout.data > 1), "the plan and the engine do not say the same"


def test_zero_3_gathers_twice_what_it_may_not_keep() -> None:
    overrides = [*RECIPE, *TWO_BILLION, "train.precision=bf16", "parallel.zero=3"]
    config = steps.configuration(overrides, 4)
    step = ranks.run(steps.step, overrides, 4, world=4)
    counted = sent(Layout(1, 1, 4), 0, step.counts.collectives)[("data",)]
    assert counted == pytest.approx(cost(config, 4, 40000, PRESETS["h100"]).data_bytes, rel=0.01), "to within a matrix"
