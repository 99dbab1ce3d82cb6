"""How often the host waits for the device in a step, and how often it copies to it, in every engine and precision.

The fake device is always behind the host: an event that DeepSpeed asks for is never done yet.
"""

from __future__ import annotations

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.steps import Step

RECIPE = [
    *("model.layers=2", "model.width=64", "model.heads=4", "model.context=64"),
    *("train.global_batch=8", "train.micro_batch=2", "optimizer.clip=0.5"),
]
ZERO_0_FP32 = ("parallel.zero=0", "train.precision=fp32")
DENSE = [
    (f"parallel.zero={stage}", f"train.precision={precision}")
    for stage in (1, 2)
    for precision in ("fp32", "bf16", "fp16")
]
TENSOR = [
    ("parallel.tensor=2", "train.precision=bf16"),
    ("parallel.tensor=2", "parallel.sequence=true", "train.precision=bf16"),
]
PIPELINE = [("parallel.pipeline=2", f"train.precision={precision}") for precision in ("fp32", "bf16", "fp16")]
ZERO_3 = [("parallel.zero=3", f"train.precision={precision}") for precision in ("fp32", "bf16", "fp16")]
SHARED = ('parallel.deepspeed={"zero_optimization": {"stage3_param_persistence_threshold": 0}}',)

RELATIVE = [
    *("model.norm=pre", "model.norm_kind=rms", "model.norm_eps=1e-6", "model.positions=relative", "model.biases=false"),
    *("model.attention_scale=one", "model.init=t5"),
]
LSTM = ["model.kind=lstm", "model.layers=1", "model.units=64"]

# The loss and the norm, read together. What is decided by a norm is decided by this read: whether an update in fp16
# has overflowed, whether a filter rejects it.
ONCE = 1
# ZeRO 3 lets the host be three reductions ahead of the device, or the device would hold the whole gradient; the second
# step's second micro-batch is the first to wait, for the reduction of the first step's first.
REDUCTIONS_AHEAD = 1
# And it is at most three gathers of weights ahead, or the device would hold the whole model: it waits for an earlier
# gather, on the stream of the gathers alone, before each weight of either pass that is not kept whole. (Here all are
# cut; DeepSpeed keeps those of up to 100,000 elements.)
GATHERS_AHEAD = 52
# One rank has nobody to gather from. DeepSpeed waits for the stream all the same, where it gathers at the end of a
# step the weights that are kept whole.
GATHERS_ALONE = 1


def check(step: Step, syncs: int = ONCE) -> None:
    assert len(step.counts.syncs) == syncs, step.waits()
    assert len(step.counts.copies) == 1, step.waits()


@pytest.mark.parametrize("layout", [ZERO_0_FP32, *DENSE, *TENSOR], ids=" ".join)
def test_a_step_waits_once_and_copies_once(layout: tuple[str, ...]) -> None:
    check(ranks.run(steps.step, [*RECIPE, *layout], 2, world=2))


@pytest.mark.parametrize("arguments", [RELATIVE, LSTM], ids=["relative", "lstm"])
def test_other_models_wait_once_and_copy_once(arguments: list[str]) -> None:
    """Anything more, within a micro-batch, could not be captured as a CUDA graph."""
    check(ranks.run(steps.step, [*RECIPE, *arguments, "train.precision=bf16"], 1))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", PIPELINE, ids=" ".join)
def test_every_stage_of_a_pipeline_waits_once(layout: tuple[str, ...], rank: int) -> None:
    check(ranks.run(steps.step, [*RECIPE, *layout], 2, rank=rank, world=2))


@pytest.mark.parametrize("layout", ZERO_3, ids=" ".join)
def test_zero_3_on_one_rank(layout: tuple[str, ...]) -> None:
    step = ranks.run(steps.step, [*RECIPE, *layout, "train.micro_batch=4"], 1)
    check(step, ONCE + REDUCTIONS_AHEAD + GATHERS_ALONE)


@pytest.mark.parametrize("layout", ZERO_3, ids=" ".join)
def test_zero_3_waits_once_for_numbers_and_then_for_memory(layout: tuple[str, ...]) -> None:
    check(ranks.run(steps.step, [*RECIPE, *layout], 2, world=2), ONCE + REDUCTIONS_AHEAD)


def test_zero_3_waits_for_memory_where_all_weights_are_gathered() -> None:
    step = ranks.run(steps.step, [*RECIPE, *ZERO_3[1], *SHARED], 2, world=2)
    check(step, ONCE + REDUCTIONS_AHEAD + GATHERS_AHEAD)


@pytest.mark.parametrize("rejected", [False, True], ids=["applied", "rejected"])
@pytest.mark.parametrize("layout", [ZERO_0_FP32, *DENSE[:2], DENSE[3], PIPELINE[0], PIPELINE[1]], ids=" ".join)
def test_a_filter_of_updates_adds_no_wait(layout: tuple[str, ...], rejected: bool) -> None:
    step = ranks.run(steps.filtered_step, [*RECIPE, *layout], 2, rejected, world=2)
    assert step.result.applied != rejected
    check(step)


@pytest.mark.parametrize("rejected", [False, True], ids=["applied", "rejected"])
def test_a_filter_of_updates_adds_no_wait_to_zero_3(rejected: bool) -> None:
    step = ranks.run(steps.filtered_step, [*RECIPE, *ZERO_3[1]], 2, rejected, world=2)
    assert step.result.applied != rejected
    check(step, ONCE + REDUCTIONS_AHEAD)
