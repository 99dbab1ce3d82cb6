"""Ranks that cannot meet, in one line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

from gpt1_ds.common.errors import LaunchError, NodeError, WorldError
from gpt1_ds.common.files import explain
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
