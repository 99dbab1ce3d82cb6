"""Ranks on hosts with addresses of their own: rendezvous, binding, and a host that is cut off in mid-run."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from gpt1_ds.common.rundir import RunDir
from tests.helpers.hosts import hosts
from tests.helpers.processes import wait_for
from tools import runs

STEPS = 30
SHORT = ["guard.step_timeout=12", "guard.save_timeout=20", "guard.init_timeout=60", "guard.lock_timeout=20"]


def arguments(data: Path, folder: Path, *more: str) -> list[str]:
    batch = ["train.global_batch=8", "train.micro_batch=2", f"train.steps={STEPS}"]
    return [*runs.TINY, *batch, f"data.path={data}", f"run.dir={folder}", *more]


def wait_for_end(processes: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """What each host said, once all have ended."""
    deadline = time.monotonic() + seconds
    return [process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0] for process in processes]


def test_two_hosts_train_as_one(tiny_data: Path, tmp_path: Path) -> None:
    """Two ranks on each; the test below has one on each."""
    with hosts(2) as network:
        there = arguments(tiny_data, tmp_path / "hosts", "parallel.tensor=2")
        said = wait_for_end(network.start(2, ["pretrain", *there], tmp_path), 240)
    here = arguments(tiny_data, tmp_path / "here", "parallel.tensor=2")
    assert runs.pretrain(here, 4) == 0
    assert runs.losses(runs.folder(there)) == runs.losses(runs.folder(here)), said


def test_a_host_that_is_cut_off_ends_the_run_and_it_continues_later(tiny_data: Path, tmp_path: Path) -> None:
    more = ["schedule.kind=constant", "schedule.warmup_steps=0", *SHORT]  # the rates of a run of any length
    told = arguments(tiny_data, tmp_path / "hosts", "train.steps=2000", *more)
    run_dir: RunDir = runs.folder(told)
    with hosts(2) as network:
        processes = network.start(1, ["pretrain", *told], tmp_path)
        wait_for(lambda: runs.last_step(run_dir) >= 8)
        network.cut_off(1)
        said = processes[0].communicate(timeout=240)[0]
        assert processes[0].returncode != 0
        assert runs.last_step(run_dir) < 2000
        network.reconnect(1)
        processes[1].kill()
    # nobody is at fault that the run could see: both wait for each other, and the first of them is named
    stuck = runs.events(run_dir, "stuck")
    assert stuck, (said, run_dir.events.read_text())
    assert stuck[0]["phase"]
    cut = runs.last_step(run_dir)
    with hosts(2) as network:
        said = wait_for_end(network.start(1, ["pretrain", *told, f"train.steps={cut + 5}"], tmp_path), 240)
    here = arguments(tiny_data, tmp_path / "here", f"train.steps={cut + 5}", *more)
    assert runs.pretrain(here, 2) == 0
    assert runs.losses(run_dir) == runs.losses(runs.folder(here)), said
    assert runs.last_step(run_dir) == cut + 5
