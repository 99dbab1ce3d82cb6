"""What a run remembers of its evaluations."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.training.saver import Evaluator, Saver
from gpt1_ds.training.state import Best, TrainingState


@pytest.mark.parametrize("taken", [True, False])
def test_a_best_that_no_disk_took_is_not_remembered(taken: bool, tmp_path: Path) -> None:
    """Else the run would look for it in the end, for ever."""
    workload: Any = SimpleNamespace(evaluate=lambda *_: [], score=lambda _: 0.7, measure="")
    engine: Any = SimpleNamespace(progress=lambda _: None, groups=SimpleNamespace(rank=0))
    saver: Any = SimpleNamespace(save_best=lambda state: taken)
    evaluator = Evaluator(workload, engine, RunDir(tmp_path), saver, lambda _: None)
    before = TrainingState(step=6, best=Best(3, 0.5))
    after = evaluator.evaluate(before)
    assert after.best == (Best(6, 0.7) if taken else Best(3, 0.5))
    assert after.evaluated == 6


def test_an_evaluator_knows_how_long_the_last_one_took(tmp_path: Path) -> None:
    """The trainer asks for it: no evaluation starts shortly before a job's time limit."""
    workload: Any = SimpleNamespace(evaluate=lambda *_: time.sleep(0.05) or [], score=lambda _: None)
    engine: Any = SimpleNamespace(progress=lambda _: None, groups=SimpleNamespace(rank=0))
    evaluator = Evaluator(workload, engine, RunDir(tmp_path), cast(Saver, None), lambda _: None)
    assert evaluator.seconds == 0
    evaluator.evaluate(TrainingState(step=6))
    assert evaluator.seconds >= 0.05
