"""Steps with compiled blocks: the compiler writes its code for the fake GPU, and what it launches is counted.

Unproven: graphs for all lengths, whose sizes are symbols, and sequence parallelism; that Triton assembles the kernels
that are written, and what they compute. tests/parallel compares the numbers of compiled blocks on CPUs.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tools.fakecuda import ranks, steps
from tools.fakecuda.steps import Step

RECIPE = [
    *("model.layers=2", "model.width=64", "model.heads=4", "model.context=64", "train.precision=bf16"),
    *("train.global_batch=4", "train.micro_batch=2"),
]
TENSOR = ["parallel.tensor=2"]


def step(*overrides: str, world: int = 1) -> Step:
    return ranks.run(steps.warm_step, [*RECIPE, *overrides], world, world=world)


@pytest.mark.parametrize("overrides", [[], ["train.recompute=block"]], ids=["plain", "recompute"])
def test_a_compiled_step_does_the_same_products_in_fewer_kernels(overrides: list[str]) -> None:
    eager, compiled = (step(f"train.compile={choice}", *overrides).counts for choice in ("off", "on"))
    assert compiled.launches < eager.launches / 2
    assert compiled.bytes < eager.bytes
    assert compiled.flops == eager.flops
    assert (len(compiled.syncs), len(compiled.copies)) == (len(eager.syncs), len(eager.copies))


def test_compiled_blocks_send_what_eager_ones_send() -> None:
    def sent(choice: str) -> Counter[tuple[str, int]]:
        calls = step(f"train.compile={choice}", *TENSOR, world=2).counts.collectives
        return Counter((call.kind, call.bytes) for call in calls)

    assert sent("on") == sent("off")
