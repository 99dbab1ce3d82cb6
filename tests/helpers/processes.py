"""Processes of this machine, some of which end while they are looked at."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> str:
    """The command line of *process*; empty once it has ended, waited for by its parent or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # ZombieProcess is one
        return ""
