"""What a person is told who asks a run to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch.distributed as dist

from gpt1_ds.common import log, stop_signals
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher import launch
from gpt1_ds.training.run import time_of_a_save
from gpt1_ds.training.saver import Saver
from gpt1_ds.training.stop import Requests


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(log, "say", lines.append)
    return lines


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = stop_signals.current()
    yield
    stop_signals.restore(before)


def requests(folder: Path, rank: int = 0) -> Requests:
    made = Requests(RunDir(folder), cast(ProcessGroups, SimpleNamespace(rank=rank)))
    made.takes = lambda: " (the last save took 3.0 s)"
    return made


def ask(number: int) -> None:
    """Send the signal, and wait for the thread that answers it; those that other tests left behind never end."""
    before = threading.enumerate()
    os.kill(os.getpid(), number)
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(10)


@pytest.mark.parametrize(("watched", "again"), [(True, "; Ctrl-C again ends it without saving"), (False, "")])
def test_a_request_is_answered_at_once(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, watched: bool, again: str
) -> None:
    monkeypatch.setattr(log, "is_terminal", lambda: watched)
    kept = requests(tmp_path)
    ask(signal.SIGINT)
    ask(signal.SIGTERM)  # which the launcher passes on beside it
    assert said == [f"asked to stop: the run saves after this step and ends (the last save took 3.0 s){again}"]
    assert kept._signalled
    with pytest.raises(KeyboardInterrupt, match="without saving; the same command continues from the last checkpoint"):
        ask(signal.SIGINT)


def test_other_ranks_are_silent(tmp_path: Path, said: list[str]) -> None:
    kept = requests(tmp_path, rank=1)
    ask(signal.SIGTERM)
    assert kept._signalled
    assert said == []


def test_a_launcher_that_ends_the_ranks_asks_for_nothing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the loss of a rank another one said that the run saves."""
    monkeypatch.setenv(launch.STORE_VARIABLE, str(tmp_path / "store"))
    (tmp_path / launch.ENDING).touch()
    kept = requests(tmp_path)
    ask(signal.SIGTERM)
    assert kept._signalled
    assert said == []


def test_how_long_a_save_takes() -> None:
    config = load(
        [], ["model.vocab_size=4096", "model.context=128", "model.layers=2", "model.width=128", "model.heads=4"]
    )
    assert time_of_a_save(cast(Saver, SimpleNamespace(seconds=75.0)), config) == " (the last save took 1 min 15 s)"
    assert time_of_a_save(cast(Saver, SimpleNamespace(seconds=None)), config) == " (about 10.7 MiB are written)"


@pytest.mark.parametrize(("ahead", "stop"), [(0.0, None), (60.0, None), (600.0, "handover")])
def test_an_evaluation_that_would_outlast_the_job_is_not_begun(
    ahead: float, stop: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked while it lasts: the job was killed at its time limit, and no other followed."""
    monkeypatch.setenv("GPT1_DS_DEADLINE", str(time.time() + 300))
    monkeypatch.setattr(dist, "all_reduce", lambda votes, group: None)
    (tmp_path / "checkpoints").mkdir()
    groups = SimpleNamespace(rank=0, world=1, control_group=None)
    kept = Requests(RunDir(tmp_path), cast(ProcessGroups, groups))
    assert kept.agree(7, True, False, ahead).stop == stop


@pytest.mark.parametrize(("ahead", "asked", "ends"), [(60.0, False, False), (600.0, False, True), (60.0, True, True)])
def test_what_follows_the_last_step_is_asked_about_apart(
    ahead: float, asked: bool, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have come while the last evaluation ran."""
    monkeypatch.setenv("GPT1_DS_DEADLINE", str(time.time() + 300))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run_dir = RunDir(tmp_path)
    run_dir.slurm.mkdir()
    groups = SimpleNamespace(rank=0, gather=lambda here: [False, here])
    kept = Requests(run_dir, cast(ProcessGroups, groups))
    if asked:
        run_dir.job_stop("7").touch()
    assert kept.must_hand_over(ahead) == ends
