"""Ranks that cannot meet, in one line."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore

from gpt1_ds.common.errors import LaunchError, NodeError, WorldError
from gpt1_ds.common.files import explain
from gpt1_ds.engine import process_groups
from gpt1_ds.launcher import network


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The meeting point, at which somebody else listens already."""
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "SLURMD_NODENAME": "node7"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield f"127.0.0.1:{port}"


def join(world: int) -> None:
    import torch.distributed as dist

    with network.explained():
        next(dist.rendezvous("env://", rank=0, world_size=world, timeout=timedelta(seconds=1)))


def test_a_port_in_use(taken: str) -> None:
    with pytest.raises(OSError) as caught:
        network.try_port()
    with pytest.raises(NodeError) as told:
        join(1)
    assert str(told.value) == str(explain(caught.value))
    assert str(told.value) == f"{taken}: the address is in use; try again, or on another node (on node7)"
    assert told.value.host == "node7"


@pytest.mark.parametrize("given", ["abc", "0", "70000", "-1", ""])
def test_what_is_no_port(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback, of torch or of this."""
    monkeypatch.setenv("MASTER_PORT", given)
    with pytest.raises(LaunchError, match=f"^MASTER_PORT={given}: is no port; choose a free one"):
        network.try_port()


def test_ranks_that_do_not_come(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(free))
    network.try_port()
    with pytest.raises(WorldError, match=f"127.0.0.1:{free}: rank 0 on node7: Timed out after") as told:
        join(2)
    assert not isinstance(told.value, NodeError)


def test_waiting_for_ranks_is_said_before_it_ends(
    taken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a wrong MASTER_ADDR nothing was said for guard.init_timeout."""
    with socket.create_server(("", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(free))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(network, "LATE_SECONDS", 0.1)
    with pytest.raises(WorldError), network.explained():
        process_groups._meet(1, 2, timedelta(seconds=1), None)
    line = f"127.0.0.1:{free}: rank 1 on node7 has waited there for 0 s for all 2 ranks to meet; MASTER_ADDR must be"
    assert line in capsys.readouterr().err
    monkeypatch.setenv("LOCAL_RANK", "1")
    with network.said_where_late(2):
        time.sleep(0.2)
    assert capsys.readouterr().err == "", "once a host"


def test_a_local_rank_that_does_not_come(taken: str, tmp_path: Path) -> None:
    """One that was stopped: it was a traceback."""
    with pytest.raises(WorldError) as told, network.explained():
        FileStore(str(tmp_path / "store"), 2).wait(["rank 1"], timedelta(seconds=0.1))
    assert str(told.value).startswith("rank 0 on node7: another rank did not come within guard.init_timeout; run again")
