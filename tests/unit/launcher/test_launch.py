"""Ranks that another launcher started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.launcher import launch
from tests.helpers.processes import wait_for

AGENT = """import subprocess, sys
rank = "from gpt1_ds.launcher import launch; launch.start('tests.unit.launcher.test_launch:live', (sys.argv[1],), None)"
subprocess.run([sys.executable, "-c", f"import sys; {rank}", sys.argv[1]])
"""


def live(folder: str) -> int:
    Path(folder, "pid").write_text(str(os.getpid()))
    time.sleep(120)
    return 0


def test_a_rank_does_not_outlive_the_agent_of_torchrun(tmp_path: Path) -> None:
    variables = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], env=variables, cwd=Path(__file__).parents[3])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        rank = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    rank.wait(timeout=10)
    assert not rank.is_running()


NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without a launcher; at its end without what a launcher's step told."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(("step", "ranks"), [("0", 4), ("4294967290", 1), ("", 1)])
def test_the_shell_of_an_allocation_is_no_step_of_ranks(step: str, ranks: int, environment: pytest.MonkeyPatch) -> None:
    """`salloc -n 4` gives its shell a step of SLURM's own (use_interactive_step), with the number of its tasks."""
    environment.setenv("SLURM_STEP_ID", step)
    for name, value in (("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")):
        environment.setenv(name, value)
    assert launch.world(None) == ranks


@pytest.mark.parametrize(("rank", "ranks"), [("3", "1"), ("1", None), ("x", "2"), ("0", "x"), ("0", "-1")])
def test_variables_of_no_rank_are_refused(rank: str, ranks: str | None, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RANK", rank)
    if ranks is not None:
        environment.setenv("WORLD_SIZE", ranks)
    with pytest.raises(LaunchError, match=f"^RANK={rank}, WORLD_SIZE={ranks or 1}: .*unset RANK WORLD_SIZE LOCAL_RANK"):
        launch.world(None)
    assert launch.world(2) == 2, "--nproc starts its own"


def test_ranks_of_srun_by_hand_are_told_how_to_meet(environment: pytest.MonkeyPatch) -> None:
    for name, value in (("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")):
        environment.setenv(name, value)
    with pytest.raises(LaunchError, match="or before srun: export MASTER_PORT=29500 MASTER_ADDR="):
        launch.start(f"{__name__}:live", ("",), None)
    environment.setenv("MASTER_ADDR", "a")
    environment.setenv("MASTER_PORT", "b")
    with pytest.raises(LaunchError, match=r"^MASTER_PORT=b: is no port"):
        launch.start(f"{__name__}:live", ("",), None)


def is_ended(folder: str) -> int:
    """Rank 1 is killed; rank 0 writes down what it hears."""
    ready, told = Path(folder, "ready"), Path(folder, "told")
    if os.environ["RANK"] == "1":
        wait_for(ready.exists)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: told.write_text(f"{launch.is_ending()}"))
    assert not launch.is_ending()
    ready.touch()
    wait_for(told.exists)
    return 0


def test_ranks_that_are_ended_after_a_lost_one_know_it(tmp_path: Path) -> None:
    """Their SIGTERM is no request of a person: nothing is saved."""
    with pytest.raises(LaunchError, match="rank 1 failed:\nit was killed by SIGKILL"):
        launch.run(f"{__name__}:is_ended", (str(tmp_path),), 2)
    assert (tmp_path / "told").read_text() == "True"


def asks(launcher: int, number: int, folder: str) -> int:
    """Rank 0 lets a signal come to the launcher when both ranks are there; no rank listens to what it passes on."""
    Path(folder, os.environ["RANK"]).touch()
    wait_for(lambda: len(os.listdir(folder)) == 2)
    if os.environ["RANK"] == "0":
        os.kill(launcher, number)
    time.sleep(120)
    return 0


def test_a_signal_that_ends_the_ranks_ends_their_program_as_without_them(tmp_path: Path) -> None:
    """Ctrl-C is said to be one, and exits with its code: it was "rank 1 failed: it was killed by SIGTERM"."""
    target, received = f"{__name__}:asks", []
    (tmp_path / "interrupted").mkdir()
    with pytest.raises(KeyboardInterrupt):
        launch.run(target, (os.getpid(), signal.SIGINT, str(tmp_path / "interrupted")), 2)
    (tmp_path / "terminated").mkdir()
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with pytest.raises(LaunchError, match="killed by SIGTERM") as caught:
            launch.run(target, (os.getpid(), signal.SIGTERM, str(tmp_path / "terminated")), 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert not caught.value.may_restart
