"""How a scaling study's sweep speaks of its cells."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.plan.machine import find_machine
from gpt1_ds.sweep.scaling_sweep import ScalingSweep
from tests.helpers.scaling_trials import finish, read, small


def test_what_ended_early_is_counted(tmp_path: Path) -> None:
    sweep = ScalingSweep(read(tmp_path), small(tmp_path), find_machine("cpu"))
    for trial, event in zip(sweep.trials, ("done", "diverged", "spike", "dominated", "failed"), strict=False):
        finish(trial, 3.0, None if event == "done" else trial.steps - 1)
        trial.run_dir.add_event(event, step=1, action="raise", problem="too high", reason="far behind")
    assert sweep.early_ends == ", 2 diverged, 1 dominated"
