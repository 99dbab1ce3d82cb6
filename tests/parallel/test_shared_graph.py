"""A pipeline stage with several outputs walks through what they share once for each micro-batch, not once for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.config import Config
from gpt1_ds.launcher import launch
from tests.helpers import finetuning
from tools import small_tasks
from tools.families import FAMILIES
from tools.layouts import RECIPE

STEPS, MICRO_BATCHES = 3, 4


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Backward passes of this rank's blocks, and how many blocks it has."""
    from gpt1_ds.model.transformer import Block

    found = {"passes": 0, "blocks": 0}

    def passed(*_: Any) -> None:
        found["passes"] += 1

    def built(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        found["blocks"] += 1
        self.register_full_backward_pre_hook(passed)

    make = Block.__init__
    Block.__init__ = built  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Block.__init__ = make  # type: ignore[method-assign]


def count_here(config: Config) -> dict[str, int]:
    """Runs on every rank: fine-tuning."""
    from gpt1_ds.training.finetuning import finetune

    with counted() as found:
        assert finetune(config) == 0
    return found


def count_two_stacks_here(overrides: list[str]) -> dict[str, int]:
    """Runs on every rank: pre-training."""
    from tools.layouts import train_here

    with counted() as found:
        train_here(overrides, STEPS)
    return found


def test_blocks_run_backward_once(tiny_data: Path, tmp_path: Path) -> None:
    given = [
        *small_tasks.make_task(tmp_path / "task", "pair", train=24, dev=2),
        *(f"task.tokenizer={tiny_data.parent / 'tokenizer'}", "parallel.pipeline=2", f"train.steps={STEPS}"),
        *("model.layers=2", "model.width=32", "model.heads=2", "model.context=48", f"run.dir={tmp_path}"),
    ]
    config = finetuning.configuration(given)
    assert config.task is not None
    assert config.task.lm_coefficient > 0
    config = replace(config, train=replace(config.train, micro_batch=config.train.global_batch // MICRO_BATCHES))
    ranks = launch.run("tests.parallel.test_shared_graph:count_here", (config,), 2)
    assert sum(rank["blocks"] for rank in ranks) == 2
    for rank in ranks:
        assert rank["passes"] == rank["blocks"] * STEPS * MICRO_BATCHES


@pytest.mark.parametrize("family", ["t5", "t5_shared"])
def test_blocks_of_two_stacks_run_backward_once(family: str, span_data: Path) -> None:
    """Wherever the cut is: both streams, and the encoder's output, which every decoder block reads, pass it."""
    given = [*RECIPE, f"data.path={span_data}", *FAMILIES[family], "train.micro_batch=4", "parallel.pipeline=4"]
    ranks = launch.run("tests.parallel.test_shared_graph:count_two_stacks_here", (given,), 4)
    assert sum(rank["blocks"] for rank in ranks) == 4
    for rank in ranks:
        assert rank["passes"] == rank["blocks"] * STEPS * 4
