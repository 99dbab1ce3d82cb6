"""Trackers that are off; where they are on is in tests/faults."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.training import trackers


def test_off_starts_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()  # the server that other tests fork their ranks from
    workload: Any = SimpleNamespace(config=load())
    assert trackers.begin(workload, RunDir(tmp_path), groups=None) == []  # type: ignore[arg-type]
    assert psutil.Process().children() == before
