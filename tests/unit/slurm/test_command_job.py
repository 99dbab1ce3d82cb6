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


def job(place: Path, command: str, variables: dict[str, str], functions: str = "") -> subprocess.Popen[str]:
    (place / "job.sh").write_text(f"python=({place}/program)\ncontinuation=requeue\n{functions}\n")
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


@pytest.mark.parametrize(("continuation", "refuses"), [("requeue", "scontrol"), ("successor", "sbatch")])
def test_a_next_job_that_slurm_refuses(continuation: str, refuses: str, place: Path) -> None:
    """In an array that may not be requeued, in an allocation of salloc, on a node that may not submit."""
    (place / refuses).write_text("#!/usr/bin/env bash\necho 'Requested operation is presently disabled' >&2\nexit 1\n")
    (place / refuses).chmod(0o755)
    done = job(place, "exit 75", {}, f"continuation={continuation} mails=END")
    said = done.communicate(timeout=20)[1].splitlines()
    assert done.returncode == 75, said
    assert said[-2:] == [
        "job 7: has no next job; what was saved is kept: start the same again",
        "job 8 waits for job 7, which did not end well, and will not run",
    ]


STARTS = 'case "$*" in *"import gpt1_ds") exit 0 ;; esac; exit 1'


@pytest.mark.parametrize(("command", "starts"), [("exit 127", False), ("exit 2", False), (STARTS, True)])
def test_a_node_that_lacks_the_program_is_named(command: str, starts: bool, place: Path) -> None:
    """No such Python, one that does not know -P, one without gpt1_ds; or only an evaluation that failed."""
    done = job(place, command, {"SLURMD_NODENAME": "node1"})
    said = done.communicate(timeout=20)[1]
    line = f"job 7: on node1 `{place}/program -P -m gpt1_ds` does not start: correct slurm.setup, or submit"
    assert (line in said) != starts, said
    once = f"SLURM_JOB_ID=7 SLURMD_NODENAME=node1; . {shipped('launch')}/env.sh; python=({place}/program)"
    once += '; program=("${python[@]}" -P -m gpt1_ds); once slurm begin'
    told = subprocess.run(["bash", "-c", once], cwd=place, capture_output=True, text=True, check=False)
    assert told.returncode == done.returncode
    assert (line in told.stderr) != starts, told.stderr


def test_a_next_job_was_never_requeued(place: Path) -> None:
    """SLURM hands SLURM_RESTART_COUNT of a requeued job down: its next job counted tries that were none of its own."""
    (place / "sbatch").write_text(f"#!/usr/bin/env bash\necho ${{SLURM_RESTART_COUNT:-none}} >{place}/count; echo 9\n")
    (place / "sbatch").chmod(0o755)
    done = job(place, "exit 75", {"SLURM_RESTART_COUNT": "1"}, "continuation=successor")
    said = done.communicate(timeout=20)[1]
    assert (place / "count").read_text() == "none\n", said


SLOW = 'kill() { builtin kill "$@"; sleep 0.3; }'  # so a command ends before the script looks at it


@pytest.mark.parametrize("slow", ["", SLOW])
@pytest.mark.parametrize(
    ("number", "ending", "code", "again"),
    [
        (signal.SIGUSR1, "exit 143", 143, True),
        (signal.SIGUSR1, "exit 75", 75, True),
        (signal.SIGUSR1, "exit 0", 0, False),
        (signal.SIGTERM, "exit 75", 75, False),  # SLURM itself requeues what it preempts
        (signal.SIGINT, "exit 75", 75, False),  # Ctrl-C in an allocation: the command ran on, and nobody saw it
    ],
)
def test_a_command_is_asked_to_end(number: int, ending: str, code: int, again: bool, slow: str, place: Path) -> None:
    """By the warning of the time limit, and by scancel."""
    loop = f"trap '{ending}' TERM; touch {place}/started; while :; do sleep 0.05; done"
    running = job(place, loop, {}, slow)
    while not (place / "started").exists():
        time.sleep(0.01)
    running.send_signal(number)
    said = running.communicate(timeout=20)[1]
    assert running.returncode == code, said
    assert ("requeue 7" in (place / "told").read_text().splitlines()) == again, said


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_ranks_that_end_while_their_job_is_asked_to_end(number: int, tmp_path: Path) -> None:
    """Their status counts, not that of `wait`, which a trap ended: here the ranks are gone before the script looks."""
    (tmp_path / "slurm").mkdir()
    lines = f"""
        set -euo pipefail
        . {shipped("launch")}/life.sh
        node=() job=7 chosen=here MASTER_ADDR=here MASTER_PORT=1 code=0
        meet() {{ :; }}
        every_node() {{ : >{tmp_path}/started; while [ ! -e {tmp_path}/STOP ]; do sleep 0.02; done; return 3; }}
        once() {{ [ "$2" = begin ] && echo {tmp_path} || echo "stop" "$@" >{tmp_path}/verdict; }}
        limit() {{ :; }}; settle() {{ :; }}; staged() {{ :; }}; gone() {{ :; }}; unstaged() {{ :; }}; follow() {{ :; }}
        forsaken() {{ :; }}
        touch() {{ command touch "$@"; command touch {tmp_path}/STOP; sleep 0.5; }}
        SLURM_NNODES=1 spare_nodes=0 ranks_per_node=1 health_check=0 pause=1 max_tries=1 poor_tries=1 restarts=0
        launcher=srun out='' losses=()
        train pretrain
    """
    running = subprocess.Popen(["bash", "-c", lines], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    running.send_signal(number)
    said = running.communicate(timeout=20)[1]
    assert (tmp_path / "verdict").read_text().endswith("--status 3\n"), said
