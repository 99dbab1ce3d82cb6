"""Where a run begins, without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.training import restorer
from gpt1_ds.training.state import Best, TrainingState


def test_a_run_that_begins_at_another_has_no_best_checkpoint_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of the other folder is not in its own, so that it could never be scored or be beaten."""
    theirs = TrainingState(step=4, best=Best(4, -1.0, "eval.loss"), lowest_validation_loss=1.0)
    for name in ("verify_checkpoint", "check_data", "check_steps_left"):
        monkeypatch.setattr(restorer, name, lambda *_: None)
    monkeypatch.setattr(restorer, "restore_newest", lambda *_: None)
    monkeypatch.setattr(restorer, "named_checkpoint", lambda _: ("checkpoint.resume", "runs/other"))
    monkeypatch.setattr(restorer, "find_checkpoint", lambda source, newest: source / "step-00000004")
    monkeypatch.setattr(restorer, "restore", lambda *_: theirs.to_manifest())
    config = SimpleNamespace(model=SimpleNamespace(vocab_size=16))
    workload: Any = SimpleNamespace(config=config, measure="eval.loss", data_hash="", steps=8)
    engine: Any = SimpleNamespace(groups=SimpleNamespace(on_rank_0=lambda action: action()))
    saver: Any = SimpleNamespace(was_read=lambda *_: None)
    state, begun = restorer.Restorer(workload, RunDir(tmp_path), engine, saver).first()
    assert (state.step, state.best, begun) == (4, None, "from step 4 of step-00000004")
