"""What jobs leave in a run folder, and how a chain of them ends."""

from __future__ import annotations

import json

from gpt1_ds.common.rundir import RunDir
from tools import runs
from tools.cluster import Cluster

BARE = ["slurm.launcher=srun"]  # where torchrun is not what is tested: each of its agents loads torch, too


def outcomes(run_dir: RunDir) -> list[int]:
    files = sorted(run_dir.slurm.glob("outcome-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(file.read_text())["code"] for file in files]


def tries(run_dir: RunDir) -> int:
    return len(list(run_dir.slurm.glob("try-*.json")))


def assert_done(cluster: Cluster, run_dir: RunDir, uninterrupted: dict[int, float]) -> None:
    cluster.wait_for_end(run_dir.path.name)
    assert run_dir.done.exists(), cluster.said()
    assert runs.losses(run_dir) == uninterrupted, "bit for bit"
