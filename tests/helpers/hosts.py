"""Hosts made of network namespaces: each has an address of its own, and a cable that can be cut."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORT = "29871"
Command = Callable[[int], tuple[Sequence[str], dict[str, str]]]  # of a host: its arguments, and variables of its own


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Hosts:
    """`count` namespaces on one bridge; host n is 10.213.77.n+1."""

    count: int
    name: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def address(self, host: int) -> str:
        return f"10.213.77.{host + 1}"

    def connect(self) -> None:
        bridge = f"{self.name}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in range(self.count):
            space, inside, outside = f"{self.name}{host}", f"{self.name}i{host}", f"{self.name}o{host}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", inside)
            _ip("-n", space, "link", "set", inside, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def cut_off(self, host: int) -> None:
        _ip("link", "set", f"{self.name}o{host}", "down")

    def reconnect(self, host: int) -> None:
        _ip("link", "set", f"{self.name}o{host}", "up")

    def start(self, ranks: int, arguments: Sequence[str], place: Path) -> list[subprocess.Popen[str]]:
        """On every host what a step of a job starts there."""
        node = [sys.executable, "-m", "gpt1_ds", "slurm", "node", "--ranks", str(ranks), *arguments]
        job = {"SLURM_NNODES": str(self.count), "SLURM_NTASKS": str(self.count)}
        meeting = {"MASTER_ADDR": self.address(0), "MASTER_PORT": PORT}
        return self.start_each(lambda host: (node, {**job, **meeting, "SLURM_NODEID": str(host)}), place)

    def start_each(self, command: Command, place: Path) -> list[subprocess.Popen[str]]:
        """On every host its own command."""
        processes = []
        for host in range(self.count):
            node, more = command(host)
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"{self.name}{host}", *node],
                **{"cwd": place, "env": variables, "text": True},
                **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
            )
            self.started.append(process)
            processes.append(process)
        return processes

    def remove(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        for host in range(self.count):
            space = f"{self.name}{host}"
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
            subprocess.run(["kill", "-9", *found], capture_output=True)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            subprocess.run(["ip", "link", "del", f"{self.name}o{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.name}b"], capture_output=True)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    found = Hosts(count, f"g{os.getpid() % 10000}x")
    try:
        found.connect()
    except (subprocess.CalledProcessError, FileNotFoundError):
        found.remove()
        if "CI" in os.environ:
            raise
        pytest.skip("network namespaces need root and iproute2")
    try:
        yield found
    finally:
        found.remove()
