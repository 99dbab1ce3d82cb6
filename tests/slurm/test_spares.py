"""A job with a node more than its ranks need loses one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.rundir import RunDir
from tests.helpers.jobs import assert_done, tries
from tests.slurm.conftest import cluster_of, sandbox_of
from tools import runs
from tools.cluster import Cluster, rank_of


@pytest.fixture
def three_nodes(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("s") / "s"  # SLURM's sockets want a short path
    with sandbox_of(3, place) as folder, cluster_of(Cluster(folder, tmp_path, tiny_data)) as found:
        yield found


def kill_node(cluster: Cluster, node: str, rank: int, run_dir: RunDir) -> None:
    """What a host takes with it when it dies: slurmd, and the step with its launcher and its rank."""
    slurmd = psutil.Process(int((cluster.folder / f"slurmd-{node}.pid").read_text()))
    task = psutil.Process(rank_of(run_dir, rank))
    step = next(parent for parent in task.parents() if parent.name() == "slurmstepd")
    for process in (slurmd, step, *step.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_spare_takes_the_place_of_a_lost_node(three_nodes: Cluster, tmp_path: Path) -> None:
    """In the same job, and the weights are those of a run that nobody disturbed."""
    cluster = three_nodes
    alone = [
        argument for argument in cluster.arguments("alone", f"run.dir={tmp_path}") if not argument.startswith("slurm.")
    ]
    assert runs.pretrain(alone, 2) == 0
    run_dir, job = cluster.submit("spare", "slurm.spare_nodes=1")
    cluster.wait_for_step(run_dir, 8)
    cluster.wait_for_save(run_dir)
    kill_node(cluster, "node2", 1, run_dir)
    assert_done(cluster, run_dir, runs.losses(RunDir(tmp_path / "alone")))
    assert runs.weights(run_dir) == runs.weights(RunDir(tmp_path / "alone"))
    assert (cluster.state(job)["JobState"], tries(run_dir)) == ("COMPLETED", 1), cluster.said()
    (event,) = runs.events(run_dir, "restarted")
    assert (event["host"], event["job"]) == ("node2", job)
    assert f"job {job} on node1,node3: ranks meet" in (run_dir.slurm / f"{job}.out").read_text()
    (note,) = run_dir.slurm.glob("try-*.json")
    assert json.loads(note.read_text())["restarts"] == 1


def test_a_node_that_died_before_the_check_is_out(three_nodes: Cluster) -> None:
    """SLURM does not know it yet and gives it to the job; a step on all nodes would start on none."""
    cluster = three_nodes
    psutil.Process(int((cluster.folder / "slurmd-node2.pid").read_text())).kill()
    run_dir, job = cluster.submit("dead", "slurm.spare_nodes=1", "slurm.health_check=true")
    cluster.wait_for_end("dead")
    assert run_dir.done.exists(), cluster.said()
    assert (cluster.state(job)["JobState"], tries(run_dir)) == ("COMPLETED", 1), cluster.said()
    said = (run_dir.slurm / f"{job}.out").read_text()
    assert f"job {job} on node1,node3: ranks meet" in said
    assert "node2: did not answer" in said
