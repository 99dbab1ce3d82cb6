"""Processes of this machine, some of which end while they are looked at, and what is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def command_of(process: psutil.Process) -> str:
    """The command line of *process*; empty once it has ended, waited for by its parent or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # ZombieProcess is one
        return ""


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Waits until `condition` holds. Fails after `seconds`, which an idle machine does not come near."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
