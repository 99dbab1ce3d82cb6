"""A terminal that is closed, an ssh connection that is lost: the run saves and ends, like one that is asked to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.helpers.processes import wait_for
from tools import runs

ROOT = Path(__file__).parents[2]


def start(arguments: list[str], ignored: bool) -> tuple[subprocess.Popen[bytes], int]:
    """The program in a session of its own on a terminal of its own: (process, the terminal's other end)."""
    ours, theirs = os.openpty()

    def on_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    command = [sys.executable, "-m", "gpt1_ds", "pretrain", *runs.TINY, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        command,
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": environment},
        start_new_session=True,
        preexec_fn=on_terminal,
    )
    os.close(theirs)
    return process, ours


def wait_for_step(arguments: list[str], step: int, terminal: int) -> None:
    os.set_blocking(terminal, False)

    def is_there() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)  # as a terminal does
        return runs.last_step(runs.folder(arguments)) >= step

    wait_for(is_there)


@pytest.mark.parametrize("ranks", [[], ["--nproc", "2"]], ids=["one process", "two ranks"])
def test_it_saves_and_ends(ranks: list[str], tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=100000", "checkpoint.every=0"]
    process, terminal = start([*arguments, *ranks], ignored=False)
    wait_for_step(arguments, 3, terminal)
    os.close(terminal)
    assert process.wait(240) == 75
    run_dir = runs.folder(arguments)
    stopped = runs.events(run_dir, "stopped")[-1]
    assert stopped["reason"] == "handover"
    assert run_dir.checkpoint(stopped["step"]).is_dir()


def test_nohup_is_respected(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=100000", "checkpoint.every=0"]
    process, terminal = start(arguments, ignored=True)
    wait_for_step(arguments, 3, terminal)
    os.close(terminal)
    reached = runs.last_step(runs.folder(arguments))
    wait_for(lambda: runs.last_step(runs.folder(arguments)) >= reached + 20 or process.poll() is not None)
    assert process.poll() is None, "the run ended"
    runs.folder(arguments).stop.touch()
    assert process.wait(240) == 0
