"""Phases in forked children: one that hangs, is killed or raises costs only itself.

The parent has the libraries loaded and never touches the GPU, so that a child starts at once and finds it unused.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

from tools.gpu.record import LOG, Contact

NO_TIME, TIMED_OUT = "s of the budget were left", "timed out after"  # words of the results
SHORTEST = 10.0  # seconds; with less than that left no phase is started
LOG_BYTES = 400_000  # of each phase: the first and the last half of it
SLOW_DEATH = 10.0  # seconds until nobody waits for a child that was killed, and that a driver's call keeps
_DUMPS: list[float] = []  # when this phase says where it is, seconds of the monotonic clock
SLOWER = 8  # how much longer a phase may take on a CPU


@dataclass(frozen=True)
class Phase:
    """Something asked of a GPU: at most `limit` seconds of it. `needs_cuda`: a CPU cannot even rehearse it. `decides`:
    where it raises, nothing else is asked.
    """

    name: str
    limit: float
    run: Callable[[Contact], None]
    needs_cuda: bool = False
    decides: bool = False


def run(phases: Sequence[Phase], contact: Contact, budget: float) -> str | None:
    """Runs every phase that fits into what is left of `budget` seconds since the contact began, one after the other.
    Returns the phase that failed and without which nothing else was asked, or None.
    """
    stopped = None
    for phase in phases:
        at, left = contact.of(phase.name), contact.began + budget - time.time()
        if stopped is not None:
            at.write("skipped", reason=f"{stopped} failed")
        elif phase.needs_cuda and contact.device == "cpu":
            at.write("skipped", reason="it needs a GPU")
        elif left < SHORTEST:
            at.write("skipped", reason=f"{max(0.0, left):.0f} {NO_TIME}")
        else:
            limit = phase.limit * (SLOWER if contact.device == "cpu" else 1)
            outcome = _run(phase, at, min(limit, left - SHORTEST / 2))
            stopped = phase.name if phase.decides and outcome == "failed" else None  # a slow answer decides nothing
    return stopped


def _run(phase: Phase, contact: Contact, limit: float) -> str:
    """Runs the phase in a child. Returns how it ended."""
    began, log = time.time(), contact.out / LOG
    with log.open("a") as file:
        file.write(f"\n=== {phase.name}\n")
        start = file.tell()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(phase, contact, limit))
    child.start()
    child.join(limit)
    outcome = _outcome(child, limit)
    contact.write("end", outcome=outcome, phase_seconds=round(time.time() - began, 1))
    _shorten(log, start)
    return outcome


def _outcome(child: ForkProcess, limit: float) -> str:
    """Returns how a child ended; one that has not is killed with all that it started."""
    code = child.exitcode
    child.kill()
    with contextlib.suppress(ProcessLookupError):  # what it started may outlive it
        os.killpg(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
    child.join(SLOW_DEATH)
    if code is None:
        return f"{TIMED_OUT} {limit:.0f} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return "done" if code == 0 else "failed"


def _child(phase: Phase, contact: Contact, limit: float) -> None:
    os.setpgid(0, 0)
    die_with_parent()
    contact = contact.of(phase.name, os.fdopen(os.dup(1), "w"))
    descriptor = os.open(contact.out / LOG, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", 1, closefd=False) for stream in (1, 2))
    faulthandler.enable()
    _DUMPS[:] = [time.monotonic() + 0.9 * limit]
    faulthandler.dump_traceback_later(0.9 * limit)  # where it hangs
    code = 0
    try:
        phase.run(contact)
    except BaseException as error:
        contact.failed(error)
        code = 1
    sys.stdout.flush()
    os._exit(code)  # nothing of the parent's is cleaned up here


def program(arguments: Sequence[str], folder: Path, slow: float | None = None) -> ForkProcess:
    """Starts `gpt1-ds ARGUMENTS` in `folder`, in a fork of this process, in which the libraries are loaded and the GPU
    is unused. After `slow` seconds the log says where it is.
    """
    process = multiprocessing.get_context("fork").Process(target=_program, args=(arguments, folder, slow))
    faulthandler.cancel_dump_traceback_later()  # the fork has not its thread, and would wait for it for ever
    process.start()
    if _DUMPS and (left := _DUMPS[0] - time.monotonic()) > 0:
        faulthandler.dump_traceback_later(left)
    return process


def _program(arguments: Sequence[str], folder: Path, slow: float | None) -> None:
    from gpt1_ds.cli import main

    die_with_parent()
    faulthandler.enable()
    if slow is not None:
        faulthandler.dump_traceback_later(slow)
    os.chdir(folder)
    code = main(list(arguments))
    sys.stdout.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Linux: this process is killed when the one that forked it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _shorten(log: Path, start: int) -> None:
    """Keeps the first and the last half of LOG_BYTES of what was written from `start` on."""
    with log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size - start <= LOG_BYTES:
            return
        file.seek(size - LOG_BYTES // 2)
        last = file.read()
        file.seek(start + LOG_BYTES // 2)
        file.write(b"\n[...]\n" + last)
        file.truncate()
