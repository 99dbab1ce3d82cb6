"""Faults of the world at a job's start: it ends with 75, and the run continues later, elsewhere where a node was bad.

Nearly all of them are met before ranks start, so that of the jobs here only the last one loads torch.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from gpt1_ds.common.lock import RunLock
from tests.faults.test_full_disk import fill
from tests.helpers.jobs import BARE, tries
from tools import runs
from tools.cluster import ROOT, Cluster

UNREADABLE = Path("/proc/self/mem")  # whose first bytes are not mapped: reading them is a real EIO
SMALL = ["slurm.nodes=1", "train.steps=2", "slurm.pause=2", "guard.lock_timeout=1"]


def damage(cluster: Cluster, tiny_data: Path) -> Path:
    """A copy of the dataset whose description cannot be read; gives the description's place."""
    cluster.data = cluster.place / "data"
    shutil.copytree(tiny_data, cluster.data)
    description = cluster.data / "dataset.json"
    description.rename(cluster.data / "kept")
    description.symlink_to(UNREADABLE)
    return description


def fix(description: Path) -> None:
    (description.parent / "kept").replace(description)


def next_of(cluster: Cluster, job: str, name: str) -> str:
    """The number of the job that follows `job`, which ended with 75."""
    cluster.wait(lambda: cluster.state(job)["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"))
    assert cluster.state(job)["ExitCode"] == "75:0", cluster.said()
    (following,) = cluster.queued(name)
    return following


def waits(cluster: Cluster, said: Path, job: str, pause: int) -> bool:
    """Whether `said` names `pause`, in seconds, and SLURM lets `job` start so much later.

    SLURM counts in whole seconds, and `sbatch` adds the pause before its request arrives: SLURM's own difference of
    the two times is shorter by what lies between, a second or two on a machine with other work.
    """
    submitted, start = (datetime.fromisoformat(cluster.state(job)[key]) for key in ("SubmitTime", "EligibleTime"))
    return f"tried again in {pause} s" in said.read_text() and pause - 2 <= (start - submitted).total_seconds() <= pause


def test_each_fault_passes_and_the_run_is_done(
    cluster: Cluster, tiny_data: Path, small_disk: Callable[[str], Path]
) -> None:
    """EIO, then a held lock, then a full disk, then a port in use."""
    disk, description = small_disk("8m"), damage(cluster, tiny_data)
    cluster.place.joinpath("runs").symlink_to(disk)
    run_dir = cluster.run_dir("tried")
    run_dir.path.mkdir()
    with RunLock(run_dir.lock):
        _, broken = cluster.submit("tried", *BARE, *SMALL)
        locked = next_of(cluster, broken, "tried")
        fix(description)
        assert cluster.state(locked)["ExcNodeList"] == "node1"
        said = (run_dir.slurm / f"{broken}.out").read_text()
        assert f"{description}: input/output error" in said
        assert "tried again in 2 s, not on node1" in said
        full = next_of(cluster, locked, "tried")
        filler = fill(disk)
    assert "another process writes this run folder" in (run_dir.slurm / f"{locked}.out").read_text()
    assert waits(cluster, run_dir.slurm / f"{locked}.out", full, 4)
    bound = next_of(cluster, full, "tried")
    filler.unlink()
    with socket.create_server(("", 10000 + int(bound) % 20000)):
        last = next_of(cluster, bound, "tried")
    assert cluster.state(bound)["NodeList"] == "node2"
    assert f":{10000 + int(bound) % 20000}: the address is in use" in (run_dir.slurm / f"{bound}.out").read_text()
    assert waits(cluster, run_dir.slurm / f"{bound}.out", last, 16)
    assert cluster.state(last)["ExcNodeList"] == "(null)", "no node would be left"
    cluster.wait_for_end("tried")
    assert run_dir.done.exists(), cluster.said()
    assert list(runs.losses(run_dir)) == [1, 2]
    assert tries(run_dir) == 2, "those whose ranks were started"


def test_a_script_given_by_hand_is_requeued(cluster: Cluster, tiny_data: Path) -> None:
    """SLURM alone knows its options, so it is told to begin the same job later and elsewhere."""
    damage(cluster, tiny_data)
    script = str(ROOT / "launch" / "pretrain.sbatch")
    job = cluster.call("sbatch", "--parsable", "--output=hand-%j.out", script, *cluster.arguments("hand"))
    cluster.wait(lambda: cluster.state(job)["Restarts"] == "1" and cluster.state(job)["JobState"] == "PENDING")
    cluster.wait(lambda: cluster.state(job)["ExcNodeList"] == "node1")
    begin = datetime.fromisoformat(cluster.state(job)["StartTime"])
    assert 30 < (begin - datetime.now()).total_seconds() <= 60
