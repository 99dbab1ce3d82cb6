"""Scale on paper: the model's stages as ranks of up to 1,024 build them, on the meta device under torch's fake process
group. What a rank holds must not grow with the number of ranks that share its data.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from gpt1_ds.plan.stages import stages

VOCABULARY = 40478
DEEP = ["model.layers=40", "model.width=5120", "model.heads=40", "model.context=2048", "train.precision=bf16"]
AXES = 3  # groups along tensor, data, and tensor x pipeline


def stand_in(overrides: list[str], world: int, ranks: list[int]) -> list[dict[str, Any]]:
    """Be each of `ranks` of `world` in turn: its groups, and the parameters of its stage."""
    return [_one(overrides, world, rank) for rank in ranks]


def _one(overrides: list[str], world: int, rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from gpt1_ds.architecture.architecture import architecture
    from gpt1_ds.architecture.count import pipeline_cuts
    from gpt1_ds.engine import process_groups
    from gpt1_ds.model.build import module_specs
    from gpt1_ds.model.layers import TensorParallel

    config, made = load([], overrides), []
    real = dist.new_group

    def fake(ranks: list[int] | None = None, **settings: Any) -> Any:
        made.append(ranks)
        return real(ranks, **{**settings, "backend": "fake"})

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    process_groups.dist.new_group = fake
    try:
        here = process_groups.ProcessGroups(config)
        model = architecture(config.model, VOCABULARY)
        specs = module_specs(model, config, TensorParallel(here.tensor_group))
        cuts = pipeline_cuts(model, here.layout.pipeline)
        first, stop = cuts[here.pipeline_rank], cuts[here.pipeline_rank + 1]
        with torch.device("meta"):
            built = [spec.module(*spec.arguments) for spec in specs[first:stop]]
        tied = [module for spec, module in zip(specs[first:stop], built, strict=True) if spec.layer.tied][1:]
        kept = [module for module in built if not any(module is one for one in tied)]
        parameters = [parameter for module in kept for parameter in module.parameters()]
        return {
            "stage": here.pipeline_rank,
            "parameters": sum(math.prod(parameter.shape) for parameter in parameters),
            "tensors": len(parameters),
            "member": len(dist.distributed_c10d._world.pg_map),
            "made": len(made),
        }
    finally:
        process_groups.dist.new_group = real
        dist.destroy_process_group()


def found(overrides: list[str], world: int, ranks: list[int]) -> list[dict[str, Any]]:
    return launch.run("tests.parallel.test_scale:stand_in", (overrides, world, ranks), 1)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 2), (4, 4), (8, 8)])
def test_every_stage_is_what_the_planner_counts(tensor: int, pipeline: int) -> None:
    overrides = [*DEEP, f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}"]
    world = 64
    firsts = [stage * world // pipeline for stage in range(pipeline)]
    planned = stages(load([], overrides), VOCABULARY)
    for one, stage in zip(found(overrides, world, firsts), planned, strict=True):
        assert one["stage"] == stage.number
        assert one["parameters"] == stage.parameters
        assert one["tensors"] == 12 * stage.blocks + (stage.has_table or stage.has_head) + stage.has_table


def test_nothing_on_a_rank_grows_with_the_ranks_that_share_data() -> None:
    overrides = [*DEEP, "parallel.tensor=8", "parallel.pipeline=4"]
    by_world = {world: found(overrides, world, [0, world - 1]) for world in (32, 256, 1024)}
    for ends in by_world.values():
        assert [one["stage"] for one in ends] == [0, 3]
        for one, small in zip(ends, by_world[32], strict=True):
            assert one["parameters"] == small["parameters"]
            assert one["tensors"] == small["tensors"]
            assert one["member"] == 1 + AXES + 1, "the world's, one along each axis, and the control group"
            assert one["made"] == AXES + 1, "a rank takes part in making its own groups alone"
