"""Trackers that are off; where they are on is in tests/faults."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.training import trackers


def test_off_starts_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()  # the server that other tests fork their ranks from
    workload: Any = SimpleNamespace(config=load())
    assert trackers.begin(workload, RunDir(tmp_path), groups=None) == []  # type: ignore[arg-type]
    assert psutil.Process().children() == before


def test_a_fine_tuned_run_shows_the_flops_that_its_speed_is_counted_with(tmp_path: Path) -> None:
    """Those of pre-training are of longer rows and of another head."""
    sizes = BatchSizes.constant(8)
    config = load([], ["task.name=rte", "task.path=x", "model.vocab_size=300"])
    workload: Any = SimpleNamespace(config=config, batch_sizes=sizes, steps=5, flops_per_token=7)
    shown = trackers.facts(workload, RunDir(tmp_path), 1)
    assert shown["flops_per_token"] == 7
    assert "flops_per_token_causal" not in shown
