"""Jobs on a real SLURM of two nodes that tools/slurm_sandbox.sh runs on this machine, and how they are interrupted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir
from tools import runs

ROOT = Path(__file__).parents[1]
STEPS = 40
WARNING, SIGNAL, REQUEUE, KILL = WAYS = ("warning", "signal to steps", "requeue", "killed rank")  # of an interruption
NODES = ["slurm.nodes=2", "slurm.cpus_per_task=1", "slurm.time=0:20:00", "train.global_batch=8", "train.micro_batch=4"]


@contextlib.contextmanager
def sandbox(folder: Path) -> Iterator[Path]:
    """Yields the folder of a SLURM that is up within the block."""
    script = str(ROOT / "tools" / "slurm_sandbox.sh")
    subprocess.run(["bash", script, "up", str(folder)], check=True, stdout=subprocess.DEVNULL)
    try:
        yield folder
    finally:
        subprocess.run(["bash", script, "down", str(folder)], check=True)


class Result:
    """What the program answered."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.lines = [line for line in err.splitlines() if line]


@dataclass
class Cluster:
    """Commands of one sandbox, run in `place`."""

    folder: Path
    place: Path
    data: Path

    @property
    def environment(self) -> dict[str, str]:
        names = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **names, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def call(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            arguments, cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}"
        return done.stdout.strip()

    def program(self, *arguments: str, seconds: float = 120) -> Result:
        command = [sys.executable, "-P", "-m", "gpt1_ds", *arguments]
        done = subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def arguments(self, name: str, *more: str) -> list[str]:
        return [*runs.TINY, *NODES, f"data.path={self.data}", f"train.steps={STEPS}", f"run.name={name}", *more]

    def submit(self, name: str, *more: str) -> tuple[RunDir, str]:
        """(the run, its first job's number)"""
        answer = self.program("slurm", "submit", "pretrain", *self.arguments(name, *more))
        assert answer.code == 0, answer.err
        return self.run_dir(name), answer.out.split()[1].rstrip(":")

    def run_dir(self, name: str) -> RunDir:
        return RunDir(self.place / "runs" / name)

    def queued(self, name: str) -> list[str]:
        """Numbers of the run's jobs that wait or run."""
        return self.call("squeue", "--noheader", f"--name={name}", "--format=%i").split()

    def state(self, job: str) -> dict[str, str]:
        text = self.call("scontrol", "--oneliner", "show", "job", job)
        return dict(argument.split("=", 1) for argument in text.split() if "=" in argument)

    def wait(self, condition: Callable[[], bool], seconds: float = 240, pause: float = 0.2) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited too long:\n{self.said()}"
            time.sleep(pause)

    def wait_for_step(self, run_dir: RunDir, step: int) -> None:
        self.wait(lambda: runs.last_step(run_dir) >= step)

    def wait_for_save(self, run_dir: RunDir) -> None:
        """Until a checkpoint is there: a job that fails before its first save is not tried again."""
        self.wait(lambda: bool(steps_in(run_dir.checkpoints)))

    def wait_for_end(self, name: str, seconds: float = 240) -> None:
        """Until no job of the run waits or runs, its successors included."""
        self.wait(lambda: not self.queued(name), seconds, pause=0.5)  # each look starts a process

    def processes(self, job: str) -> dict[int, list[bytes]]:
        """The arguments of all processes of the program in a job, by number; `job` is its SLURM_JOB_ID."""
        named = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()}
        return {pid: arguments for pid, arguments in _programs() if named <= set(_variables(pid))}

    def ranks(self, job: str) -> list[int]:
        """The processes that compute: a job's ranks, or the one of its command."""
        others = {b"slurm", b"torch.distributed.run"}
        return [pid for pid, arguments in self.processes(job).items() if others.isdisjoint(arguments)]

    def interrupt(self, job: str, how: str, draw: random.Random) -> float:
        """Interrupts a running job in one of WAYS; the seconds until the processes that it had were gone."""
        job = self.state(job)["JobId"]  # of an array's task, too
        before = set(self.processes(job))
        if how == WARNING:
            self._signal("--batch", job)
        elif how == SIGNAL:  # a job without steps is its batch script
            steps = self.call("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i").split()
            self._signal(*([] if any(step[-1].isdigit() for step in steps) else ["--full"]), job)
        elif how == REQUEUE:
            self.call("scontrol", "requeue", job)
        else:
            os.kill(draw.choice(self.ranks(job)), signal.SIGKILL)
        begin = time.monotonic()
        self.wait(lambda: not before & set(self.processes(job)), 60)
        return time.monotonic() - begin

    def _signal(self, *arguments: str) -> None:
        """Sends USR1 once: scancel takes a task of an array to be in transition, and would repeat it for minutes."""
        self.call("timeout", "3", "scancel", "--signal=USR1", *arguments, check=False)

    def said(self) -> str:
        """What the jobs' output files and SLURM's own logs hold, and its queue."""
        files = [*sorted(self.place.rglob("*.out")), *sorted((self.folder / "log").glob("slurm*.log"))]
        queue = self.call("squeue", check=False)
        return "\n".join([queue, *(f"--- {file}\n{file.read_text()[-3000:]}" for file in files)])


def rank_of(run_dir: RunDir, rank: int, variable: str = "RANK") -> int:
    """The process of one of the run's ranks: torchrun writes RANK into its environment, srun SLURM_PROCID."""
    for pid in processes_of(run_dir):
        if f"{variable}={rank}".encode() in _variables(pid):
            return pid
    raise AssertionError(f"rank {rank} is not there")


def processes_of(run_dir: RunDir) -> list[int]:
    """All Python processes that were told this run's configuration."""
    return [
        pid for pid, arguments in _programs() if any(str(run_dir.slurm).encode() in argument for argument in arguments)
    ]


def _programs() -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number, arguments) of the program's processes on this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if any(b"gpt1_ds" in argument for argument in arguments):
                yield int(folder.name), arguments


def _variables(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
