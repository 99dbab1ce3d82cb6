"""Every rank of every layout alone, on a fake process group: together they would neither mismatch nor wait for ever.

Layouts of one rank have nobody to wait for and are left out. Unproven here: ZeRO 3's own
comparison of ranks and the shapes that pipeline stages announce, whose values are not there (tools/fakecuda/steps.py),
and what NCCL does.
"""

from __future__ import annotations

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.counter import Collective
from tools.fakecuda.schedule import deadlock
from tools.fakecuda.steps import Step
from tools.layouts import LAYOUTS, RECIPE, Layout

SEVERAL = [layout for layout in LAYOUTS if layout.ranks > 1]
FEW_BLOCKS = "model.layers=2"  # where a layout has fewer than three stages: a block is like the next


def all_ranks(layout: Layout) -> list[Step]:
    """One after another, each in a process of its own."""
    words = [*RECIPE, *layout.overrides]
    config = steps.configuration(words, layout.ranks)
    if config.parallel.pipeline < 3:
        words.append(FEW_BLOCKS)
    step = steps.step if config.parallel.pipelined else steps.warm_step
    return [ranks.run(step, words, layout.ranks, rank=rank, world=layout.ranks) for rank in range(layout.ranks)]


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


@pytest.mark.parametrize("layout", SEVERAL, ids=lambda layout: f"{layout.name} on {layout.ranks}")
def test_collectives_fit_together(layout: Layout) -> None:
    found = all_ranks(layout)
    assert deadlock({rank: step.counts.collectives for rank, step in enumerate(found)}) is None
    for step in found:
        for one in step.counts.collectives:
            assert one.devices == ("cpu" if one.backend == "gloo" else "cuda",), one
