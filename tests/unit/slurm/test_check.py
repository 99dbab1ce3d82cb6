"""Which hosts the health check calls bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.slurm import faults
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


@pytest.mark.parametrize(("hosts", "left_out"), [(["a", "b", "c"], ["b", "c"]), (["b", "c"], [])])
def test_a_job_is_tried_again_without_the_bad_hosts(
    hosts: list[str], left_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all of them have, a full disk say, is no fault of theirs."""
    run_dir = RunDir(tmp_path)
    run_dir.create()
    monkeypatch.setenv(faults.RUN_VARIABLE, str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for rank, host in enumerate(host for host in hosts if host != "c"):
        found = report(host, rank, *["disk: full"] * (host == "b"))
        write_json(run_dir.slurm / f"health-{rank}.json", found)
    code = main(["slurm", "verdict", str(run_dir.slurm), *hosts])
    fault = faults.find(run_dir, "7")
    assert code == 1
    assert fault is not None
    assert sorted(fault.hosts) == left_out
    assert fault.reason == "c: did not answer; b: disk: full"
