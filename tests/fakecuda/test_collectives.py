"""Every rank of every layout alone, on a fake process group: together they would neither mismatch nor wait for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.counter import Collective
from tools.fakecuda.schedule import deadlock
from tools.fakecuda.steps import Step
from tools.layouts import LAYOUTS, RECIPE, Layout

Run = Callable[[Layout], list[Step]]


@pytest.fixture(scope="module")
def run() -> Run:
    """All ranks of a layout, one after another; each layout runs once."""
    known: dict[tuple[str, int], list[Step]] = {}

    def all_ranks(layout: Layout) -> list[Step]:
        words = [*RECIPE, *layout.overrides]
        if (key := (layout.name, layout.ranks)) not in known:
            known[key] = [
                ranks.run(steps.step, words, layout.ranks, rank=rank, world=layout.ranks)
                for rank in range(layout.ranks)
            ]
        return known[key]

    return all_ranks


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


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.name} on {layout.ranks}")
def test_collectives_fit_together(layout: Layout, run: Run) -> None:
    found = run(layout)
    assert deadlock({rank: step.counts.collectives for rank, step in enumerate(found)}) is None
    for step in found:
        for one in step.counts.collectives:
            assert one.devices == ("cpu" if one.backend == "gloo" else "cuda",), one
