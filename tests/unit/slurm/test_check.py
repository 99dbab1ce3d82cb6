"""Which hosts the health check calls bad."""

from __future__ import annotations

from typing import Any

from gpt1_ds.slurm.check import verdict


def report(host: str, rank: int, *problems: str, reached: bool | None = True) -> dict[str, Any]:
    found: dict[str, Any] = {"host": host, "rank": rank, "problems": list(problems)}
    return found if reached is None else {**found, "reached": reached, "mib_per_second": 100.0}


def test_all_is_well() -> None:
    well, lines = verdict([report("a", 0), report("b", 1)], ["a", "b"])
    assert well
    assert lines == ["2 ranks on a, b reach one another; all-reduce at 100.0 MiB/s"]


def test_a_silent_host_and_a_full_disk() -> None:
    well, lines = verdict([report("a", 0), report("b", 1, "disk: full")], ["a", "b", "c"])
    assert not well
    assert lines == ["c: did not answer", "b: disk: full", "leave them out: slurm.exclude=c,b"]


def test_one_rank_that_reaches_nobody_is_named() -> None:
    reports = [report("a", 0), report("b", 1, reached=None), report("c", 2)]
    well, lines = verdict(reports, ["a", "b", "c"])
    assert not well
    assert lines[0] == "b: rank 1 did not reach the others"


def test_nobody_reaches_anybody() -> None:
    well, lines = verdict([report("a", 0, reached=None), report("b", 1, reached=None)], ["a", "b"])
    assert not well
    assert "NCCL_SOCKET_IFNAME" in lines[0]
