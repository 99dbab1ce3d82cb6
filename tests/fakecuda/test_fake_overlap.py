"""Gradients are reduced over data-parallel ranks while the last backward pass still computes, in every engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.counter import Collective
from tools.fakecuda.schedule import deadlock
from tools.fakecuda.steps import Step

RECIPE = [
    *("model.layers=4", "model.width=64", "model.heads=4", "model.context=64"),
    *("train.global_batch=8", "train.micro_batch=2", "optimizer.clip=0.5"),
]
DENSE = [
    ("parallel.zero=0", "train.precision=fp32"),
    *(
        (f"parallel.zero={stage}", f"train.precision={precision}")
        for stage in (1, 2, 3)
        for precision in ("fp32", "bf16", "fp16")
    ),
]
PIPELINES = [("parallel.pipeline=2", f"train.precision={precision}") for precision in ("fp32", "bf16", "fp16")]


def small_buckets(overrides: Sequence[str], world: int, overlaps: bool = True) -> Step:
    """The second step, with buckets of which a small model has several."""
    from gpt1_ds.engine.deepspeed import overlap, settings
    from gpt1_ds.model import proof

    settings.BUCKET_ELEMENTS = overlap.BUCKET_ELEMENTS = 20_000
    proof.decide(overlaps)
    return steps.step(overrides, world)


def reductions(step: Step, members: tuple[int, ...]) -> list[Collective]:
    """Of gradients over data-parallel ranks: larger than what a norm or a loss needs."""
    found = [call for call in step.counts.collectives if call.ranks == members and call.bytes > 64]
    return [call for call in found if call.kind.startswith(("allreduce", "reduce_scatter"))]


def last_backward_pass(step: Step) -> tuple[int, int]:
    """The numbers of the first and last matrix product of the last micro-batch's backward pass."""
    phase = f"backward of micro-batch {step.micro_batches - 1}"
    products = [at for at, kernel in enumerate(step.counts.kernels) if kernel.phase == phase and kernel.flops]
    return products[0], products[-1]


def check(step: Step, members: tuple[int, ...]) -> None:
    first, last = last_backward_pass(step)
    early = [call for call in reductions(step, members) if first < call.after <= last]
    assert early, [(call.kind, call.bytes, call.after) for call in reductions(step, members)]


@pytest.mark.parametrize("layout", DENSE, ids=" ".join)
def test_the_first_reduction_is_issued_before_the_last_product(layout: tuple[str, ...]) -> None:
    check(ranks.run(small_buckets, [*RECIPE, *layout], 2, world=2), (0, 1))


@pytest.mark.parametrize("layout", PIPELINES, ids=" ".join)
def test_every_stage_of_a_pipeline_overlaps_and_the_ranks_fit_together(layout: tuple[str, ...]) -> None:
    found = [ranks.run(small_buckets, [*RECIPE, *layout], 4, rank=rank, world=4) for rank in range(4)]
    for rank, step in enumerate(found):
        check(step, (0, 1) if rank < 2 else (2, 3))
    assert deadlock({rank: step.counts.collectives for rank, step in enumerate(found)}) is None


@pytest.mark.parametrize("layout", [DENSE[0], DENSE[1], PIPELINES[0], PIPELINES[1]], ids=" ".join)
def test_as_many_bytes_are_reduced_as_without_overlap(layout: tuple[str, ...]) -> None:
    world = 2 if layout in DENSE else 4
    beside, after = (
        ranks.run(small_buckets, [*RECIPE, *layout], world, overlaps, world=world) for overlaps in (True, False)
    )
    first, last = last_backward_pass(after)
    assert not [call for call in reductions(after, (0, 1)) if first < call.after <= last], "the test can fail"
    assert sum(call.bytes for call in reductions(beside, (0, 1))) == sum(
        call.bytes for call in reductions(after, (0, 1))
    )
