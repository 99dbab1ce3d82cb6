"""The folder in which ranks meet: short enough for a socket, and never left behind for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.launcher import network

ROOT = Path(__file__).parents[3]
LAUNCHER = """
import sys, time
from multiprocessing.connection import Listener
from gpt1_ds.launcher import network
made = network.folder()
with Listener(family="AF_UNIX") as listener:  # as the fork server's
    print(made, listener.address, flush=True)
    sys.stdin.read()
"""


def launcher(place: Path) -> tuple[subprocess.Popen[str], Path, str]:
    """A process that has its folder below `place`: (process, folder, where it listens)."""
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER], env=environment, text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout is not None
    made, address = process.stdout.readline().split()
    return process, Path(made), address


def test_what_a_killed_launcher_leaves_is_removed_by_the_next() -> None:
    place = Path("/tmp") / f"t{os.getpid()}"  # pytest's own are too long
    place.mkdir()
    try:
        killed, left, _ = launcher(place)
        alive, kept, address = launcher(place)
        assert Path(address).is_relative_to(kept)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert left.exists()
        third, _, _ = launcher(place)
        assert not left.exists()
        assert kept.exists(), "that of a launcher that lives"
        for process in (alive, third):
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == 0
        assert list(place.iterdir()) == [], "an orderly end leaves nothing"
    finally:
        place.rmdir()


def test_a_long_tmpdir_is_not_used_for_sockets(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    process, made, _ = launcher(long)
    assert process.communicate(timeout=30) == ("", "")
    assert len(str(made)) < len(str(long))


def test_a_place_is_named_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ELSEWHERE", ())
    monkeypatch.setattr(network.tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    with pytest.raises(network.LaunchError, match="export TMPDIR=/tmp"):
        network._place()
