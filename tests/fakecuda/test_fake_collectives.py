"""Every rank of every layout alone, on a fake process group: together they would neither mismatch nor wait for ever,
and the busiest would send what the planner says.

Layouts of one rank have nobody to wait for and are left out. Unproven here: ZeRO 3's own
comparison of ranks and the shapes that pipeline stages announce, whose values are not there (tools/fakecuda/steps.py),
and what NCCL does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpt1_ds.engine.process_groups import Layout as Place
from tools.fakecuda import ranks, steps
from tools.fakecuda.counter import Collective
from tools.fakecuda.schedule import deadlock
from tools.fakecuda.steps import Step
from tools.fakecuda.symmetry import all_alike, along, unplanned
from tools.layouts import LAYOUTS, RECIPE, Layout

SEVERAL = [layout for layout in LAYOUTS if layout.ranks > 1]

LARGE = Place(tensor=8, pipeline=8, data=8)
ORIGIN = LARGE.members(0, "pipeline")  # a rank of each stage
CORNER = LARGE.members(63, "pipeline")
TENSOR, DATA = LARGE.members(0, "tensor"), LARGE.members(448, "data")  # along the two other axes
WORLD = 512
RECIPE_OF_512 = [
    *("model.layers=8", "model.width=64", "model.heads=8", "model.context=16", "train.precision=bf16"),
    *("model.residual_dropout=0", "model.embedding_dropout=0", "model.attention_dropout=0"),  # no rank waits for them
    *("train.global_batch=16", "train.micro_batch=1", "parallel.tensor=8", "parallel.pipeline=8"),
]
FEW_BLOCKS = "model.layers=2"  # where a layout has fewer than three stages: a block is like the next


def all_ranks(layout: Layout) -> list[Step]:
    """One after another, each in a process of its own."""
    overrides = [*RECIPE, *layout.overrides]
    config = steps.configuration(overrides, layout.ranks)
    if config.parallel.pipeline < 3:
        overrides.append(FEW_BLOCKS)
    differs = config.parallel.pipelined or config.parallel.zero == 3  # the first step from the others
    step = steps.step if differs else steps.warm_step
    return [ranks.run(step, overrides, layout.ranks, rank=rank, world=layout.ranks) for rank in range(layout.ranks)]


def call(kind: str, members: tuple[int, ...], size: int = 4, peer: int | None = None) -> Collective:
    return Collective(kind, "float32", size, members, ("cuda",), peer, "nccl", "", "", 0)


def test_what_does_not_fit_together_is_noticed() -> None:
    everyone, two = (0, 1), (0, 1)
    reduce, gather = call("allreduce", everyone), call("allgather", everyone)
    send, receive = call("send", two, peer=1), call("recv", two, peer=0)
    assert deadlock({0: [reduce, gather], 1: [reduce, gather]}) is None
    assert deadlock({0: [reduce, gather], 1: [gather, reduce]}), "another order"
    assert deadlock({0: [reduce, reduce], 1: [reduce]}), "one too many"
    assert deadlock({0: [reduce], 1: [call("allreduce", everyone, 8)]}), "other bytes"
    assert deadlock({0: [send, reduce], 1: [receive, reduce]}) is None
    assert deadlock({0: [send, reduce], 1: [reduce, receive]}), "a reduction waits for a rank that sends"
    assert deadlock({0: [send], 1: [call("send", two, peer=0)]}), "both send"
    assert deadlock({0: [reduce], 1: []}), "one does not take part"
    with pytest.raises(KeyError):
        deadlock({0: [reduce]})


def test_a_stage_stands_for_its_ranks() -> None:
    layout = Place(tensor=2, pipeline=2, data=2)  # ranks 0 to 3 are the first stage, of which 0 and 1 share matrices
    state = [call("allreduce", (0, 1)), call("send", tuple(range(8)), peer=4), call("allreduce", (0, 2), 8)]
    last = [call("recv", tuple(range(8)), peer=0), call("allreduce", (4, 6), 8)]
    world = all_alike(layout, {0: state, 4: last})
    assert [one.ranks for one in world[3]] == [(2, 3), tuple(range(8)), (1, 3)]
    assert (world[3][1].peer, world[7][0].peer) == (7, 3)
    assert deadlock(world) is None
    for rank in range(8):
        for place, one in enumerate(world[rank]):
            wrong = [*world[rank]]
            wrong[place] = replace(one, bytes=one.bytes + 4)
            assert deadlock({**world, rank: wrong}), f"rank {rank} differs at {place}"
            assert deadlock({**world, rank: wrong[:place] + wrong[place + 1 :]}), f"rank {rank} leaves {place} out"


@pytest.mark.parametrize("layout", SEVERAL, ids=lambda layout: f"{layout.name} on {layout.ranks}")
def test_collectives_fit_together(layout: Layout) -> None:
    found = all_ranks(layout)
    calls = {rank: step.counts.collectives for rank, step in enumerate(found)}
    assert deadlock(calls) is None
    assert unplanned(found[0].config, layout.ranks, calls) == []
    for step in found:
        for one in step.counts.collectives:
            assert one.devices == ("cpu" if one.backend == "gloo" else "cuda",), one


def collectives(overrides: list[str], rank: int) -> list[Collective]:
    """Of one of 512 ranks. Kernels between them are not compared: the norm leaves out what an earlier rank counts."""
    step = ranks.run(steps.step, overrides, WORLD, rank=rank, world=WORLD)
    return [replace(one, after=0) for one in step.counts.collectives]


# 512 processes are too many. What a rank does depends on its stage alone, in its own groups: ranks that lie apart along
# the tensor and the data axis do what the one at the origin of their stage does, moved to their place. Then all 512
# ranks do so, and every member of every group is compared with the others. That members name the same ranks is tested
# in tests/unit/engine/test_process_groups.py, for all 512; PipelineEngine compares DeepSpeed's groups with these.


@pytest.mark.slow
def test_ranks_of_a_stage_do_alike() -> None:
    found = {rank: collectives(RECIPE_OF_512, rank) for rank in (*TENSOR, *DATA)}
    alike = all_alike(LARGE, {rank: found[rank] for rank in (TENSOR[0], DATA[0])})
    for rank, calls in found.items():
        assert calls == alike[rank], f"rank {rank} does not do what its stage does"


@pytest.mark.slow
@pytest.mark.parametrize("sequence", ["false", "true"])
def test_512_ranks_fit_together(sequence: str) -> None:
    overrides = [*RECIPE_OF_512, f"parallel.sequence={sequence}"]
    found = {rank: collectives(overrides, rank) for rank in (*ORIGIN, *CORNER)}
    world = all_alike(LARGE, {rank: found[rank] for rank in ORIGIN})
    assert sorted(world) == list(range(WORLD))
    for rank in CORNER:
        assert found[rank] == world[rank], f"rank {rank} does not do what its stage does"
    assert deadlock(world) is None
    assert unplanned(steps.configuration(overrides, WORLD), WORLD, {rank: found[rank] for rank in ORIGIN}) == []
    kinds = {along(LARGE, 300, one): place for place, one in enumerate(world[300])}
    assert {("tensor",), ("data",), ("pipeline",), ("tensor", "pipeline")} <= set(kinds)
    for place in kinds.values():
        wrong = [*world[300]]
        wrong[place] = replace(wrong[place], bytes=wrong[place].bytes + 2)
        assert deadlock({**world, 300: wrong}), f"rank 300 differs at {place}"
