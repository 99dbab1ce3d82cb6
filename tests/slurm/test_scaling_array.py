"""A scaling study as an array of SLURM: trunks before branches, and cells that are killed, requeued and diverge."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.rundir import RunDir, read_jsonl
from tools import runs
from tools.cluster import Cluster

WILD, TRUNK, HELD_UP = "l1w32-64K-lr1000-seed1", "l2w32-64K-seed1", "l3w32-64K-seed1"


@pytest.fixture
def study(cluster: Cluster) -> Path:
    arguments = [
        *(argument for argument in runs.TINY if not argument.startswith(("model.", "checkpoint."))),
        "model.context=32",
    ]
    text = {
        "name": "array",
        "overrides": dict(
            argument.split("=", 1) for argument in [*arguments, f"data.path={cluster.data}", "slurm.time=0:20:00"]
        ),
        "head_width": 16,
        "schedule": "wsd",
        "jobs": 2,
        "epochs_limit": 8,
        "keep_checkpoints": True,
        "arms": [
            {"name": "depth", "kind": "depth", "width": 32, "layers": [2, 3], "tokens": ["16K", "64K"]},
            {"name": "wild", "kind": "depth", "width": 32, "layers": [1], "tokens": ["64K"], "rates": [1000]},
        ],
    }
    text["overrides"] |= {"slurm.nodes": 1, "slurm.cpus_per_task": 1, "slurm.launcher": "srun"}
    file = cluster.place / "array.yaml"
    file.write_text(json.dumps(text))
    return file


def disturb(cluster: Cluster, folder: Path, job: str) -> None:
    """Kill the trunk's process behind its first save; let SLURM requeue another trunk."""
    trunk, other = RunDir(folder / TRUNK), RunDir(folder / HELD_UP)
    cluster.wait(lambda: bool(runs.events(trunk, "saved")))
    for pid in processes_naming(TRUNK):
        os.kill(pid, signal.SIGKILL)
    cluster.wait(lambda: bool(runs.events(other, "saved")))
    manifest = next(folder.glob("slurm/submission-1/scratch.jsonl")).read_text().splitlines()
    number = next(n for n, line in enumerate(manifest) if HELD_UP in line)
    cluster.call("scontrol", "requeue", f"{job}_{number}")


def processes_naming(cell: str) -> list[int]:
    """The ranks of a cell; torchrun and the batch script are not among them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        named = any(argument.endswith(f"/{cell}.yaml".encode()) for argument in arguments)
        if named and b"slurm" not in arguments and b"torch.distributed.run" not in arguments:
            found.append(int(folder.name))
    return found


def test_array_with_trouble(cluster: Cluster, study: Path) -> None:
    answer = cluster.program("scaling", "submit", str(study))
    assert answer.code == 0, answer.err
    job = answer.out.split()[1].rstrip(":")
    folder = cluster.place / "runs" / "array"
    again = cluster.program("scaling", "submit", str(study))
    assert again.code == 2
    assert "would run its cells twice" in again.err
    disturb(cluster, folder, job)
    cluster.wait_for_end("array", 480)

    told = [line for file in folder.glob("slurm/*_*.out") for line in file.read_text().splitlines()]
    assert any("results.csv: 5 cells" in line and "waiting" in line for line in told), "it grows with each cell"
    with open(folder / "results.csv", newline="") as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    assert len(rows) == 5
    assert rows.pop(WILD)["outcome"] == "diverged"
    assert {row["outcome"] for row in rows.values()} == {"done"}, cluster.said()
    assert_nothing_ran_twice(folder, list(rows))
    status = cluster.program("scaling", "status", str(study)).out
    assert "4 done, 1 diverged" in status
    assert cluster.program("scaling", "submit", str(study)).out.endswith("all cells are done, 1 diverged\n")
    assert_same_losses_as_here(cluster, study, rows)


def assert_nothing_ran_twice(folder: Path, cells: list[str]) -> None:
    """Every cell was begun once, and gone on with once where it was disturbed."""
    for cell in cells:
        starts = [event["step"] for event in read_jsonl(folder / cell / "events.jsonl") if event["event"] == "started"]
        assert len(starts) == (2 if cell in (TRUNK, HELD_UP) else 1), cell
        assert starts == sorted(set(starts)), f"{cell} went on from a save"
    assert len(runs.events(RunDir(folder / WILD), "started")) == 1


def assert_same_losses_as_here(cluster: Cluster, study: Path, rows: dict[str, dict[str, Any]]) -> None:
    """`scaling run` comes to the same, bit for bit."""
    answer = cluster.program("scaling", "run", str(study), "run.dir=here", seconds=480)
    assert answer.code == 0, answer.err
    with open(cluster.place / "here" / "array" / "results.csv", newline="") as file:
        here = {row["cell"]: row["loss"] for row in csv.DictReader(file)}
    assert {cell: row["loss"] for cell, row in rows.items()} == {cell: here[cell] for cell in rows}
