"""A rank that is slower than the other is named, and nothing else changes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tools import runs
from tools.runs import Background

STEPS = 70  # a window has 50


@pytest.mark.slow
def test_a_slow_rank_is_named(tiny_data: Path, tmp_path: Path) -> None:
    """Rank 1 is stopped for most of the time, several times in each of its steps."""
    arguments = [f"data.path={tiny_data}", f"train.steps={STEPS}", "train.log_every=5", "train.eval_every=0"]
    alone = [*arguments, f"run.dir={tmp_path / 'alone'}"]
    assert runs.pretrain(alone, 2) == 0
    run = Background([*arguments, f"run.dir={tmp_path / 'slowed'}"], 2)
    run.wait_for(lambda: runs.last_step(run.run_dir) > 0)
    (rank,) = (process.pid for process in run.processes() if process.name == "rank-1")
    while run.thread.is_alive() and not runs.events(run.run_dir, "straggler"):
        try:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(rank, signal.SIGCONT)
            time.sleep(0.005)
        except ProcessLookupError:
            break
    run.join()
    assert run.result == 0, run.error
    told = runs.events(run.run_dir, "straggler")
    assert [event["rank"] for event in told] == [1]
    assert told[0]["seconds"] > 1.3 * told[0]["others"] > 0
    assert runs.losses(run.run_dir) == runs.losses(runs.folder(alone)), "to the bit"
    assert runs.weights(run.run_dir) == runs.weights(runs.folder(alone))
