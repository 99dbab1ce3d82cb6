"""A whole step of every engine and precision runs on CUDA tensors: nothing mixes devices, every result is on the GPU.

Torch itself refuses an operation on two devices; the counter sees every collective's tensors. Blocks run uncompiled.
"""

from __future__ import annotations

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.steps import Step

RECIPE = [
    *("model.layers=2", "model.width=64", "model.heads=4", "model.context=64"),
    *("train.global_batch=8", "train.micro_batch=4", "optimizer.clip=0.5"),
]
DENSE = [f"parallel.zero={stage}" for stage in range(4)]
ENGINES = [*DENSE, "parallel.assembly=pipeline"]
PRECISIONS = ("fp32", "bf16", "fp16")
CASES = [
    (engine, precision) for engine in ENGINES for precision in PRECISIONS if engine != DENSE[0] or precision == "fp32"
]


def check(step: Step, rank: int) -> None:
    assert step.devices == (step.device,) == (f"cuda:{rank}",), "every weight is on this rank's GPU"
    assert step.result.applied
    assert step.counts.kernels
    for collective in step.counts.collectives:
        assert collective.devices == ("cpu" if collective.backend == "gloo" else "cuda",), collective


@pytest.mark.parametrize(("engine", "precision"), CASES)
def test_a_step(engine: str, precision: str) -> None:
    overrides = [*RECIPE, engine, f"train.precision={precision}"]
    check(ranks.run(steps.step, overrides, 1), 0)


@pytest.mark.parametrize("engine", [DENSE[1], DENSE[3], ENGINES[-1]])
def test_the_second_rank_of_two_has_the_second_gpu(engine: str) -> None:
    check(ranks.run(steps.step, [*RECIPE, engine, "train.precision=bf16"], 2, rank=1, world=2), 1)


@pytest.mark.parametrize("engine", [DENSE[1], ENGINES[-1]])
def test_evaluation(engine: str) -> None:
    counts = ranks.run(steps.evaluation, [*RECIPE, engine, "train.precision=bf16"], 1)
    assert counts.kernels


@pytest.mark.parametrize("engine", [DENSE[1], ENGINES[-1]])
def test_a_step_of_fine_tuning(engine: str) -> None:
    check(ranks.run(steps.finetuning_step, [*RECIPE, engine, "train.precision=bf16"], 1), 0)


@pytest.mark.parametrize("layout", [case for case in CASES if case[0] in DENSE[:3] and case[1] != "fp16"], ids=" ".join)
@pytest.mark.parametrize(
    ("optimizer", "world"), [("muon", 1), ("lamb", 1), ("lamb", 2), ("adafactor", 1), ("adafactor", 2)]
)
def test_a_step_of_a_rule_for_whole_matrices(optimizer: str, world: int, layout: tuple[str, str]) -> None:
    """It finds its rows and matrices on the device without a wait. Muon's ranks tell each other what they hold, which
    nobody does here: it is alone.
    """
    arguments = [*RECIPE, f"optimizer.name={optimizer}", layout[0], f"train.precision={layout[1]}"]
    step = ranks.run(steps.step, arguments, world, world=world)
    check(step, 0)
    assert (len(step.counts.syncs), len(step.counts.copies)) == (1, 1), step.waits()


def test_a_step_after_a_model_was_loaded() -> None:
    check(ranks.run(step_after_a_model, [*RECIPE, DENSE[1], "train.precision=bf16"]), 0)


def step_after_a_model(overrides: list[str]) -> Step:
    from gpt1_ds.engine.process_groups import connect_alone

    connect_alone()
    return steps.step(overrides, 1)


@pytest.mark.parametrize("micro_batch", [8, 2])
def test_a_step_after_its_graphs_have_proved_themselves(micro_batch: int) -> None:
    overrides = [*RECIPE, f"train.micro_batch={micro_batch}", DENSE[1], "train.precision=bf16"]
    step = ranks.run(steps.step_with_new_graphs, overrides, 1)
    check(step, 0)
    assert len(step.counts.graphs) == step.micro_batches == 8 // micro_batch
    assert step.counts.host_launches < step.counts.launches / 4
    assert len(step.counts.syncs) <= 1


@pytest.mark.parametrize("overrides", [["train.cuda_graphs=off"], ["train.precision=fp32"], ["parallel.zero=2"]])
def test_what_has_no_graphs(overrides: list[str]) -> None:
    step = ranks.run(steps.step, [*RECIPE, "train.precision=bf16", *overrides], 1)
    assert not step.counts.graphs


@pytest.mark.parametrize(
    "arguments",
    [[], ["model.positions=relative", "model.mask=prefix", "objective.kind=prefix"]],
    ids=["learned", "relative"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["likeliest", "drawn"])
def test_a_token_is_written_by_one_graph(arguments: list[str], temperature: float) -> None:
    """It waits for the device twice: whether all numbers are finite, and for the token."""
    few, many = (
        ranks.run(steps.sample, [*RECIPE, "model.norm=pre", *arguments], count, temperature) for count in (8, 9)
    )
    assert few[1] == many[1] == "cuda:0"
    assert len(many[0].graphs) - len(few[0].graphs) == 1
    assert many[0].host_launches - few[0].host_launches <= (50 if temperature else 15)
    assert len(many[0].syncs) - len(few[0].syncs) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_what_nobody_has_proven_is_off(engine: str) -> None:
    """A step of two ranks without a kernel of Triton and without a graph. (tests/fakecuda/test_fake_overlap.py looks
    at the reductions.)
    """
    arguments = [*RECIPE, engine, f"train.precision={'fp32' if engine == DENSE[0] else 'bf16'}"]
    plain, proven = (ranks.run(decided_step, answer, arguments, rank=1, world=2) for answer in (False, True))
    for step, kernels in ((plain, False), (proven, True)):
        check(step, 1)
        assert ("softmax_sums_and_gradient" in {kernel.name for kernel in step.counts.kernels}) is kernels
        assert bool(step.counts.graphs) is (kernels and engine == DENSE[1])


def decided_step(answer: bool, overrides: list[str]) -> Step:
    from gpt1_ds.model import proof

    proof.decide(answer)
    return steps.step(overrides, 2)
