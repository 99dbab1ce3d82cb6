"""Steps with compiled blocks: the compiler writes its code for the fake GPU, and what it launches is counted.

Unproven: graphs for all lengths, whose sizes are symbols; that Triton assembles the kernels that are written, and what
they compute. tests/parallel compares the numbers of compiled blocks on CPUs.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tools.fakecuda import ranks, roofline, steps
from tools.fakecuda.counter import Counts
from tools.fakecuda.steps import Step
from tools.fakecuda.work import FLASH, FLASH_BACKWARD

RECIPE = [
    *("model.layers=2", "model.width=64", "model.heads=4", "model.context=64", "train.precision=bf16"),
    *("train.global_batch=4", "train.micro_batch=2"),
]
RELATIVE = ["model.norm=pre", "model.positions=relative", "model.biases=false"]
TENSOR = ["parallel.tensor=2"]
SEQUENCE = [*TENSOR, "parallel.sequence=true"]


@cache
def step(*overrides: str, world: int = 1) -> Step:
    return ranks.run(steps.warm_step, [*RECIPE, *overrides], world, world=world)


@pytest.mark.parametrize("overrides", [[], ["train.recompute=block"]], ids=["plain", "recompute"])
def test_a_compiled_step_does_the_same_products_in_fewer_kernels(overrides: list[str]) -> None:
    eager, compiled = (step(f"train.compile={choice}", *overrides).counts for choice in ("off", "on"))
    assert compiled.launches < eager.launches
    assert simple(compiled) < simple(eager) / 2, "products, attention and collectives are launched either way"
    assert compiled.bytes < eager.bytes
    assert compiled.flops == eager.flops
    assert (len(compiled.syncs), len(compiled.copies)) == (len(eager.syncs), len(eager.copies))


def test_relative_positions_add_up_their_gradient_in_a_fixed_order() -> None:
    """tools/fakecuda/compiled.py raises for code that adds up in another one, in every step that is compiled here."""
    eager, compiled = (step(f"train.compile={choice}", *RELATIVE).counts for choice in ("off", "on"))
    assert compiled.launches < eager.launches


def sent(counts: Counts) -> Counter[tuple[str, int]]:
    return Counter((call.kind, call.bytes) for call in counts.collectives)


def test_compiled_blocks_send_what_eager_ones_send() -> None:
    eager, compiled = (step(f"train.compile={choice}", *TENSOR, world=2).counts for choice in ("off", "on"))
    assert sent(compiled) == sent(eager)


def simple(counts: Counts) -> int:
    """Launches of what is neither a product nor attention."""
    return sum(kernel.launches for kernel in counts.kernels if roofline.category(kernel) in roofline.SIMPLE)


def test_compiled_blocks_that_cut_sequences_gather_once_what_eager_ones_gather_again() -> None:
    eager, compiled = (step(f"train.compile={choice}", *SEQUENCE, world=2).counts for choice in ("off", "on"))
    assert compiled.launches < eager.launches
    assert simple(compiled) < simple(eager) / 2, "products, attention and collectives are launched either way"
    assert compiled.bytes < eager.bytes
    assert compiled.flops == eager.flops
    assert not sent(compiled) - sent(eager)
    spared = sent(eager) - sent(compiled)
    assert {kind for kind, _ in spared} == {"allgather_base"}, "inputs of the products, for the backward pass"
    assert spared.total() == 8, "of two products of each of two blocks, twice"


def test_exact_attention_launches_and_moves_no_more_than_fused() -> None:
    exact, fused = (step("train.compile=on", *more).counts for more in ([], ["model.attention=fused"]))
    assert {kernel.name for kernel in fused.kernels} >= {FLASH, FLASH_BACKWARD}, "what a GPU would take"
    assert exact.launches <= fused.launches
    assert exact.host_launches < fused.host_launches / 2, "fused has no CUDA graph"
    assert exact.bytes <= fused.bytes
    assert sum(map(roofline.seconds, exact.kernels)) <= sum(map(roofline.seconds, fused.kernels))
    assert len(exact.syncs) <= len(fused.syncs)
