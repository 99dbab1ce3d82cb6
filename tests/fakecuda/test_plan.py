"""The planner's counts of plan/cuda.py are within 10 % of what a step of GPT-1 launches and moves on the fake GPU, and
its buckets those of DeepSpeed.

Unproven: attention=fused, whose kernels are torch's own; large micro-batches, where the compiler splits a few more
reductions. A CUDA graph's copies of its inputs are not the plan's business.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from gpt1_ds.config import load
from gpt1_ds.plan import cost, cuda
from gpt1_ds.plan.buckets import buckets
from gpt1_ds.plan.machine import PRESETS
from tools.fakecuda import parts, ranks, steps
from tools.fakecuda.device import fake_mode
from tools.fakecuda.parts import Part

PRESET, ROWS, VOCABULARY = "pretrain/gpt1_117m", 8, 40478
EAGER, COMPILED = "train.compile=off", "train.compile=on"
AGAIN, PRE = "train.recompute=block", "model.norm=pre"
NO_DROPOUT = tuple(f"model.{name}_dropout=0" for name in ("residual", "attention", "embedding"))
CASES = [(mode, *more) for mode in (EAGER, COMPILED) for more in ((), (AGAIN,), NO_DROPOUT, (PRE,))]
ONCE = [case for case in CASES if AGAIN not in case]


@lru_cache(maxsize=len(CASES))
def counted(case: tuple[str, ...]) -> tuple[Part, Part]:
    """A block and both ends, on one rank and a micro-batch of ROWS rows."""
    rows = [f"train.micro_batch={ROWS}", f"train.global_batch={ROWS}", "train.cuda_graphs=off"]
    return parts.block_and_ends([*rows, *case], 1, [PRESET])


def within(planned: float, found: float) -> bool:
    return abs(planned - found) <= 0.1 * found


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_kernels(case: tuple[str, ...]) -> None:
    config = load([PRESET], [f"train.micro_batch={ROWS}", *case])
    block, ends = counted(case)
    for planned, part in ((cuda.block_kernels(config), block), (cuda.end_kernels(config), ends)):
        assert within(planned[0], part.forward), (planned, part)
        assert within(planned[1], part.backward), (planned, part)


@pytest.mark.parametrize("case", ONCE, ids=" ".join)
def test_bytes_of_the_simple_passes(case: tuple[str, ...]) -> None:
    config = load([PRESET], [f"train.micro_batch={ROWS}", *case])
    machine = PRESETS["h100"]
    step = cost._Step(config, 1, VOCABULARY, machine)
    block = next(layer for layer in step.stages[0].body if layer.kind == "block")
    planned = step.simple_passes(block) * machine.speeds_with("bf16", 1).stream
    assert within(planned, counted(case)[0].bytes), (planned / ROWS / 512, counted(case)[0].bytes / ROWS / 512)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("zero", "precision"), [(1, "fp32"), (1, "fp16"), (2, "fp32"), (2, "bf16"), (2, "fp16")])
def test_buckets(zero: int, precision: str, world: int) -> None:
    overrides = [f"parallel.zero={zero}", f"train.precision={precision}", f"train.global_batch={2 * world}"]
    overrides.append("train.micro_batch=1")
    planned = buckets(load([], overrides), world, 1, "cuda")
    assert ranks.run(while_reduced, overrides, world, world=world) == {planned.filled}


def while_reduced(overrides: list[str], world: int) -> set[int]:
    """Bytes of DeepSpeed's buckets whenever one of them is reduced."""
    found, config = set(), steps.configuration(overrides, world)
    with fake_mode():
        engine = steps.build(config)
        optimizer = engine.deepspeed.optimizer
        reduce = optimizer.average_tensor

        def average(*arguments: Any) -> None:
            found.add(sum(one.nbytes for bucket in optimizer.ipg_buckets.values() for one in bucket.buffer))
            reduce(*arguments)

        optimizer.average_tensor = average
        steps.counted(engine, lambda: engine.step(steps.batches(config, engine), 1e-4))
    return found
