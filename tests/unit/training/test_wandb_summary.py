"""What training shows in W&B where it is off; where it is on is in tests/faults/test_tracking.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.training import wandb_summary


def test_off_starts_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()  # the server that other tests fork their ranks from
    workload: Any = SimpleNamespace(config=load())
    assert wandb_summary.begin(workload, RunDir(tmp_path), groups=None) is None  # type: ignore[arg-type]
    assert psutil.Process().children() == before
