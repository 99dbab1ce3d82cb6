"""A run's life as jobs of two nodes: every way that a job ends, and losses that know nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from gpt1_ds.common.rundir import RunDir
from tests.helpers import runs
from tests.helpers.jobs import BARE, NODES, ROOT, Cluster, processes_of, rank_of
from tests.helpers.wandb_files import read_segments


def outcomes(run_dir: RunDir) -> list[int]:
    files = sorted(run_dir.slurm.glob("outcome-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(file.read_text())["code"] for file in files]


def tries(run_dir: RunDir) -> int:
    return len(list(run_dir.slurm.glob("try-*.json")))


def assert_done(cluster: Cluster, run_dir: RunDir, uninterrupted: dict[int, float]) -> None:
    cluster.wait_for_end(run_dir.path.name)
    assert run_dir.done.exists(), cluster.said()
    assert runs.losses(run_dir) == uninterrupted, "bit for bit"


def test_limit_saves_and_a_successor_goes_on(cluster: Cluster) -> None:
    """A run that takes longer than a job may. SLURM warns up to a minute earlier than it is asked to."""
    words = [*runs.TINY, *NODES, f"data.path={cluster.data}", "train.steps=50000", "checkpoint.every=0"]
    run_dir, job = cluster.submit("limited", *words, "slurm.time=0:01:00", "slurm.warning=30")
    cluster.wait(lambda: outcomes(run_dir) == [75])
    handed_over = runs.last_step(run_dir)
    cluster.wait_for_step(run_dir, handed_over + 5)
    assert cluster.state(job)["ExitCode"] == "75:0"
    run_dir.stop.touch()
    cluster.wait_for_end("limited")
    assert outcomes(run_dir) == [75, 0], cluster.said()
    local = runs.Background([*words, f"run.dir={cluster.place / 'local'}"], 2)
    local.wait_for(lambda: runs.last_step(local.run_dir) >= handed_over + 5, 240)
    local.run_dir.stop.touch()
    local.join()
    ours, theirs = runs.losses(run_dir), runs.losses(local.run_dir)
    common = range(1, handed_over + 6)
    assert [ours[step] for step in common] == [theirs[step] for step in common]


def test_asked_to_hand_over(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, job = cluster.submit("asked", "tracking.wandb=offline")
    cluster.wait_for_step(run_dir, 3)
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    assert_done(cluster, run_dir, uninterrupted)
    assert outcomes(run_dir) == [75, 0]
    assert not list(run_dir.path.glob("STOP*")), "requests are removed when honoured"
    answer = cluster.program("slurm", "status", str(run_dir.path))
    assert "the run says handover (75)" in answer.out
    assert "COMPLETED" in answer.out
    for output in run_dir.slurm.glob("*.out"):
        assert f":{10000 + int(output.stem) % 20000}\n" in output.read_text(), "every job has its own meeting point"
    segments = read_segments(run_dir.path)
    assert len({segment.id for segment in segments}) == 1, "one W&B run"
    shown = [value for segment in segments for value in segment.values("train/loss")]
    assert shown == sorted(uninterrupted.items()), "no point lost or doubled"


def test_jobs_of_a_run_keep_their_words_and_their_turn(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    """The second is told of fewer steps while the first one waits; both do as they were told, one after the other."""
    run_dir, job = cluster.submit("twice", *BARE, "slurm.options=[--begin=now+5]")
    answer = cluster.program("slurm", "submit", "pretrain", *cluster.words("twice", "slurm.partition=nowhere"))
    assert answer.code == 2
    _, second = cluster.submit("twice", *BARE, "tracking.tags=[second]")
    assert_done(cluster, run_dir, uninterrupted)
    assert outcomes(run_dir) == [0, 0]
    assert cluster.state(job)["EndTime"] <= cluster.state(second)["StartTime"]


def test_signal_to_all_steps_is_an_orderly_stop_too(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, job = cluster.submit("steps")
    cluster.wait_for_step(run_dir, 3)
    cluster.call("scancel", "--signal=USR1", job)
    assert_done(cluster, run_dir, uninterrupted)
    assert outcomes(run_dir) == [75, 0]


def test_stop_file_ends_without_a_successor(cluster: Cluster) -> None:
    run_dir, job = cluster.submit("stopped", *BARE)
    cluster.wait_for_step(run_dir, 3)
    run_dir.stop.touch()
    cluster.wait_for_end("stopped")
    assert outcomes(run_dir) == [0]
    assert tries(run_dir) == 1
    assert not run_dir.done.exists()
    assert cluster.state(job)["JobState"] == "COMPLETED"


def test_scancel_ends_it(cluster: Cluster) -> None:
    run_dir, job = cluster.submit("cancelled", *BARE)
    cluster.wait_for_step(run_dir, 3)
    cluster.call("scancel", job)
    cluster.wait_for_end("cancelled")
    assert tries(run_dir) == 1
    assert cluster.state(job)["JobState"] == "CANCELLED"


def test_requeued(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, job = cluster.submit("requeued", *BARE)
    cluster.wait_for_step(run_dir, 8)
    cluster.call("scontrol", "requeue", job)
    assert_done(cluster, run_dir, uninterrupted)
    assert cluster.state(job)["Restarts"] == "1"


def test_killed_rank_ends_the_job_and_the_next_goes_on(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, job = cluster.submit("killed", f"slurm.stage_to={cluster.place / 'node disk'}")
    cluster.wait_for_step(run_dir, 8)
    os.kill(rank_of(run_dir, 1), signal.SIGKILL)
    assert_done(cluster, run_dir, uninterrupted)
    assert outcomes(run_dir) == [0], "a killed rank leaves no word; its successor does"
    assert cluster.state(job)["JobState"] == "FAILED"
    assert tries(run_dir) == 2
    assert list((cluster.place / "node disk").glob("*/.complete")), "the data were copied to the node first"


def test_lost_node(cluster: Cluster, sandbox: Path, uninterrupted: dict[int, float]) -> None:
    """slurmd and the ranks of the second node are gone at once; the run goes on when the node is back."""
    run_dir, _ = cluster.submit("lost")
    cluster.wait_for_step(run_dir, 8)
    os.kill(int((sandbox / "slurmd-node2.pid").read_text()), signal.SIGKILL)
    os.kill(rank_of(run_dir, 1), signal.SIGKILL)
    cluster.wait(lambda: not processes_of(run_dir), seconds=90)
    script = str(ROOT / "tools" / "slurm_sandbox.sh")
    subprocess.run(["bash", script, "node", str(sandbox), "node2"], check=True, capture_output=True)
    assert_done(cluster, run_dir, uninterrupted)


def test_wrong_words_are_not_tried_again(cluster: Cluster) -> None:
    """Given to sbatch by hand, because `submit` would not let them pass."""
    script = str(ROOT / "launch" / "pretrain.sbatch")
    words = cluster.words("wrong", "model.headz=3")
    job = cluster.call("sbatch", "--parsable", "--output=wrong-%j.out", script, *words)
    cluster.wait(lambda: cluster.state(job)["JobState"] in ("FAILED", "COMPLETED"))
    assert cluster.state(job)["ExitCode"] == "2:0"
    assert "Did you mean: 'heads'" in cluster.said()
    assert not cluster.queued("pretrain")


def test_script_works_by_itself_and_two_jobs_share_a_host(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    script = str(ROOT / "launch" / "pretrain.sbatch")
    for name in ("one", "two"):
        cluster.call("sbatch", "--nodes=2", "--cpus-per-task=1", script, *cluster.words(name))
    cluster.wait_for_end("pretrain")
    for name in ("one", "two"):
        assert runs.losses(cluster.run_dir(name)) == uninterrupted, cluster.said()


def test_array_of_runs(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    """A task that is asked to hand over is requeued, and its sibling is not."""
    manifest = cluster.place / "runs.jsonl"
    manifest.write_text("".join(json.dumps(["pretrain", *cluster.words(name)]) + "\n" for name in ("one", "two")))
    script = str(ROOT / "launch" / "array.sbatch")
    words = ["sbatch", "--parsable", "--array=0-1", "--nodes=2", "--cpus-per-task=1", script, str(manifest)]
    job = cluster.call(*words)
    cluster.wait_for_step(cluster.run_dir("two"), 3)
    cluster.call("scancel", "--batch", "--signal=USR1", f"{job}_1")
    cluster.wait_for_end("array")
    for name in ("one", "two"):
        assert runs.losses(cluster.run_dir(name)) == uninterrupted, cluster.said()
    assert (tries(cluster.run_dir("one")), tries(cluster.run_dir("two"))) == (1, 2)


def test_a_task_per_rank(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, _ = cluster.submit("direct", "slurm.launcher=srun", "slurm.nodes=1", "slurm.ranks_per_node=2")
    assert_done(cluster, run_dir, uninterrupted)


def test_health_check(cluster: Cluster) -> None:
    answer = cluster.program("slurm", "check", "slurm.nodes=2", "slurm.cpus_per_task=1")
    assert answer.code == 0, answer.err
    assert "2 ranks on node1, node2 reach one another" in answer.err
