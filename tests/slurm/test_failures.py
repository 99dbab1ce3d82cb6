"""Jobs that are requeued, killed, lost or wrong, that others start, or that run beside one another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from gpt1_ds.common.rundir import RunDir
from tests.helpers.jobs import BARE, assert_done, outcomes, tries
from tools import runs
from tools.cluster import ROOT, Cluster, processes_of, rank_of


def test_requeued(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    """With a task per rank on one node, which is tested nowhere else; other tests requeue jobs of two nodes."""
    run_dir, job = cluster.submit("requeued", *BARE, "slurm.nodes=1", "slurm.ranks_per_node=2")
    cluster.wait_for_step(run_dir, 8)
    cluster.wait_for_save(run_dir)
    cluster.call("scontrol", "requeue", job)
    assert_done(cluster, run_dir, uninterrupted)
    assert cluster.state(job)["Restarts"] == "1"
    assert not runs.events(run_dir, "restarted"), "SLURM started the job again, not the job its ranks"


def test_killed_rank_ends_the_job_and_the_next_continues(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    disk = f"slurm.stage_to={cluster.place / 'node disk'}"
    run_dir, job = cluster.submit("killed", disk, "slurm.restarts=0")
    cluster.wait_for_step(run_dir, 8)
    cluster.wait_for_save(run_dir)
    os.kill(rank_of(run_dir, 1), signal.SIGKILL)
    copies = cluster.place / "node disk"
    cluster.wait(lambda: tries(run_dir) == 2)
    assert list(copies.glob("*/.complete")), "the data were copied to the node first, and stay for the next job"
    assert_done(cluster, run_dir, uninterrupted)
    cluster.wait(lambda: not list(copies.iterdir()))  # nobody reads them any more
    assert outcomes(run_dir) == [0], "a killed rank leaves no word; its successor does"
    assert cluster.state(job)["JobState"] == "FAILED"
    assert tries(run_dir) == 2


def test_killed_ranks_begin_again_in_their_job(cluster: Cluster, tmp_path: Path) -> None:
    """Twice; the third time the next job does it."""
    long = ["model.width=128", "model.layers=4", "model.context=128", "train.steps=60", "checkpoint.every=10"]
    alone = cluster.arguments("alone", *long, f"run.dir={tmp_path}")
    assert runs.pretrain([argument for argument in alone if not argument.startswith("slurm.")], 2) == 0
    run_dir, job = cluster.submit("again", *long, "slurm.restarts=2")
    for number, rank in enumerate((1, 0, 1), 1):
        cluster.wait(lambda n=number: len(runs.events(run_dir, "started")) == n)  # type: ignore[misc]
        began = runs.events(run_dir, "started")[-1]["step"]
        cluster.wait(lambda b=began: any(e["step"] > b for e in runs.events(run_dir, "saved")), pause=0.02)  # type: ignore[misc]
        os.kill(rank_of(run_dir, rank), signal.SIGKILL)
    assert_done(cluster, run_dir, runs.losses(RunDir(tmp_path / "alone")))
    assert runs.weights(run_dir) == runs.weights(RunDir(tmp_path / "alone"))
    told = runs.events(run_dir, "restarted")
    assert [(event["restarts"], event["rank"], event["host"]) for event in told] == [(1, 1, "node2"), (2, 0, "node1")]
    again = runs.events(run_dir, "trained again")
    assert [0 < event["seconds"] < 60 for event in again] == [True, True], "of the first job alone"
    assert tries(run_dir) == 2
    assert cluster.state(job)["JobState"] == "FAILED"


def test_lost_node(cluster: Cluster, sandbox: Path, uninterrupted: dict[int, float]) -> None:
    """slurmd and the ranks of the second node are killed together; the run resumes when the node is back."""
    run_dir, _ = cluster.submit("lost", *BARE)
    cluster.wait_for_step(run_dir, 8)
    cluster.wait_for_save(run_dir)
    os.kill(int((sandbox / "slurmd-node2.pid").read_text()), signal.SIGKILL)
    os.kill(rank_of(run_dir, 1, "SLURM_PROCID"), signal.SIGKILL)
    cluster.wait(lambda: not processes_of(run_dir), seconds=90)
    script = str(ROOT / "tools" / "slurm_sandbox.sh")
    subprocess.run(["bash", script, "node", str(sandbox), "node2"], check=True, capture_output=True)
    assert_done(cluster, run_dir, uninterrupted)


def test_wrong_words_are_not_tried_again(cluster: Cluster) -> None:
    """Given to sbatch by hand, because `submit` would not let them pass."""
    script = str(ROOT / "launch" / "pretrain.sbatch")
    arguments = cluster.arguments("wrong", "model.layerz=3")
    job = cluster.call("sbatch", "--parsable", "--output=wrong-%j.out", script, *arguments)
    cluster.wait(lambda: cluster.state(job)["JobState"] in ("FAILED", "COMPLETED"))
    assert cluster.state(job)["ExitCode"] == "2:0"
    assert "Did you mean: 'layers'" in cluster.said()
    assert not cluster.queued("pretrain")


def test_script_works_by_itself(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    script = str(ROOT / "launch" / "pretrain.sbatch")
    cluster.call("sbatch", "--nodes=2", "--cpus-per-task=1", script, *cluster.arguments("alone"))
    cluster.wait_for_end("pretrain")
    assert runs.losses(cluster.run_dir("alone")) == uninterrupted, cluster.said()


def test_array_of_runs(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    """Two jobs that share their hosts: the one that is asked to hand over is requeued, and its sibling is not."""
    manifest = cluster.place / "runs.jsonl"
    manifest.write_text("".join(json.dumps(["pretrain", *cluster.arguments(name)]) + "\n" for name in ("one", "two")))
    script = str(ROOT / "launch" / "array.sbatch")
    arguments = ["sbatch", "--parsable", "--array=0-1", "--nodes=2", "--cpus-per-task=1", script, str(manifest)]
    job = cluster.call(*arguments)
    cluster.wait_for_step(cluster.run_dir("two"), 3)
    began, hosts = cluster.state(f"{job}_1")["StartTime"], cluster.state(f"{job}_1")["NodeList"]
    cluster.call("scancel", "--batch", "--signal=USR1", f"{job}_1")
    cluster.wait_for_end("array")
    for name in ("one", "two"):
        assert runs.losses(cluster.run_dir(name)) == uninterrupted, cluster.said()
    sibling = cluster.state(f"{job}_0")
    assert (sibling["NodeList"], began < sibling["EndTime"]) == (hosts, True), "they ran beside each other"
    assert (tries(cluster.run_dir("one")), tries(cluster.run_dir("two"))) == (1, 2)


def test_health_check(cluster: Cluster) -> None:
    answer = cluster.program("slurm", "check", "slurm.nodes=2", "slurm.cpus_per_task=1")
    assert answer.code == 0, answer.err
    assert "2 ranks on node1, node2 reach one another" in answer.err
