"""Ranks that no launcher of ours started: each has a command line, a folder and disks of its own, as on its own host.

They are forked from the server of the tests, so that two of them train within seconds, and then get what torchrun would
give them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from gpt1_ds.launcher import launch

NEW_MOUNTS = 0x20000  # CLONE_NEWNS


@dataclass(frozen=True)
class Host:
    """One rank: its arguments, where it is started, what is mounted there (folder -> its own folder in that place), and
    what functions give there.
    """

    arguments: Sequence[str]
    folder: Path
    mounts: Mapping[str, str] = field(default_factory=dict)
    gives: Mapping[str, object] = field(default_factory=dict)
    name: str = "here"


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    seconds: float


def start(*commands: Sequence[Host]) -> list[list[Ended]]:
    """How `gpt1-ds` ended on each host, of one command after the other; each is started on all its hosts at once.
    Mounts stay for the commands that follow.
    """
    if any(host.mounts for hosts in commands for host in hosts) and os.geteuid() != 0:
        assert "CI" not in os.environ, "CI runs as root, so that this is tested there"
        pytest.skip("disks of one's own need root")
    ports = [_free_port() for _ in commands]
    of_ranks = launch.run(f"{__name__}:become", (list(commands), ports), len(commands[0]))
    return [list(ended) for ended in zip(*of_ranks, strict=True)]


def _free_port() -> int:
    """One that no connection of another test gets from the system, whose own begin at 32768: the second command needs
    it only after the first has ended.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def become(commands: Sequence[Sequence[Host]], ports: Sequence[int]) -> list[Ended]:
    """This rank as its host, in one command after the other."""
    del os.environ[launch.STORE_VARIABLE]
    hosts = [command[int(os.environ["RANK"])] for command in commands]
    return [_ended(host, port) for host, port in zip(hosts, ports, strict=True)]


def _ended(host: Host, port: int) -> Ended:
    from gpt1_ds import cli

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), SLURMD_NODENAME=host.name)
    if host.mounts:
        assert ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0, "root may"
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for place, own in host.mounts.items():
            subprocess.run(["mount", "--bind", own, place], check=True)
    os.chdir(host.folder)
    with contextlib.ExitStack() as stack:
        for name, value in host.gives.items():
            stack.enter_context(mock.patch(name, return_value=value))
        said, began = stack.enter_context(contextlib.redirect_stderr(io.StringIO())), time.monotonic()
        try:
            code = cli.main(host.arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, said.getvalue(), time.monotonic() - began)
