"""The job of a command that is no run: what it does when the command was ended, as launch/command.sbatch has it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpt1_ds.common.files import shipped

TWICE = {"SLURM_RESTART_COUNT": "2"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Launch scripts, and a scontrol that writes down what it is told."""
    for name in ("command.sbatch", "env.sh", "life.sh", "next.sh"):
        (tmp_path / name).write_text((shipped("launch") / name).read_text())
    for name, text in (("scontrol", f'echo "$@" >>{tmp_path}/told'), ("squeue", "echo 8 afterok:7")):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "told").touch()
    return tmp_path


def job(place: Path, command: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    (place / "job.sh").write_text(f"python=({place}/program)\ncontinuation=requeue\n")
    (place / "program").write_text(f"#!/usr/bin/env bash\n{command}\n")
    (place / "program").chmod(0o755)
    given = {"SLURM_JOB_ID": "7", "GPT1_DS_LAUNCH": str(place), "PATH": f"{place}:{os.environ['PATH']}", **variables}
    command_line = ["bash", str(place / "command.sbatch"), "evaluate", "runs/a"]
    return subprocess.Popen(command_line, env={**os.environ, **given}, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("command", "variables", "code", "again"),
    [
        ("exit 0", {}, 0, False),
        ("exit 2", {}, 2, False),
        ("exit 1", {}, 1, False),
        ("kill -9 $$", {}, 137, True),
        ("kill -9 $$", TWICE, 137, False),  # slurm.poor_tries=3
        ("exit 75", TWICE, 75, True),  # slurm.max_tries=100
        ("exit 75", {"SLURM_RESTART_COUNT": "99"}, 75, False),
        ("kill -TERM $$", {}, 143, False),  # scancel, which the script may hear of a moment later
    ],
)
def test_which_end_has_a_next_job(command: str, variables: dict[str, str], code: int, again: bool, place: Path) -> None:
    done = job(place, command, variables)
    said = done.communicate(timeout=20)[1]
    assert done.returncode == code, said
    fate = "was cancelled or preempted" if code == 143 else "did not end well, and will not run"
    assert ("requeue 7" in (place / "told").read_text().splitlines()) == again, said
    assert (f"job 8 waits for job 7, which {fate}" in said) == (code != 0 and not again), said


@pytest.mark.parametrize(
    ("number", "ending", "code", "again"),
    [
        (signal.SIGUSR1, "exit 143", 143, True),
        (signal.SIGUSR1, "exit 75", 75, True),
        (signal.SIGUSR1, "exit 0", 0, False),
        (signal.SIGTERM, "exit 75", 75, False),  # SLURM itself requeues what it preempts
    ],
)
def test_a_command_is_asked_to_end(number: int, ending: str, code: int, again: bool, place: Path) -> None:
    """By the warning of the time limit, and by scancel."""
    loop = f"trap '{ending}' TERM; touch {place}/begun; while :; do sleep 0.05; done"
    running = job(place, loop, {})
    while not (place / "begun").exists():
        time.sleep(0.01)
    running.send_signal(number)
    said = running.communicate(timeout=20)[1]
    assert running.returncode == code, said
    assert ("requeue 7" in (place / "told").read_text().splitlines()) == again, said
