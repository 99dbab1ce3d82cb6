"""A run's life as jobs of two nodes: every orderly way that a job ends, and losses that know nothing of it."""

from __future__ import annotations

from tests.helpers.jobs import BARE, assert_done, outcomes, tries
from tests.helpers.wandb_files import read_segments
from tools import runs
from tools.cluster import NODES, Cluster


def test_limit_saves_and_a_successor_continues(cluster: Cluster) -> None:
    """A run that takes longer than a job may. SLURM warns up to a minute earlier than it is asked to."""
    arguments = [*runs.TINY, *NODES, f"data.path={cluster.data}", "train.steps=50000", "checkpoint.every=0"]
    short = ["slurm.time=0:01:00", "slurm.warning=30", "slurm.poor_tries=0"]  # a slow machine mostly loads libraries
    run_dir, job = cluster.submit("limited", *BARE, *arguments, *short)
    cluster.wait(lambda: outcomes(run_dir) == [75])
    handed_over = runs.last_step(run_dir)
    cluster.wait_for_step(run_dir, handed_over + 5)
    assert cluster.state(job)["ExitCode"] == "75:0"
    run_dir.stop.touch()
    cluster.wait_for_end("limited")
    *handovers, end = outcomes(run_dir)
    assert (set(handovers), end) == ({75}, 0), cluster.said()  # a slow job is warned, too, and has a successor
    stops = [event["step"] for event in runs.events(run_dir, "stopped")]
    assert stops == sorted(set(stops)), "each job moved on"
    assert len(stops) == len(handovers) + 1
    local = runs.Background([*arguments, f"run.dir={cluster.place / 'local'}"], 2)
    local.wait_for(lambda: runs.last_step(local.run_dir) >= handed_over + 5, 240)
    local.run_dir.stop.touch()
    local.join()
    ours, theirs = runs.losses(run_dir), runs.losses(local.run_dir)
    common = range(1, handed_over + 6)
    assert [ours[step] for step in common] == [theirs[step] for step in common]


def test_asked_to_hand_over(cluster: Cluster, uninterrupted: dict[int, float]) -> None:
    run_dir, job = cluster.submit("asked", *BARE, "tracking.wandb=offline", "slurm.mail=me")
    cluster.wait_for_step(run_dir, 3)
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    assert_done(cluster, run_dir, uninterrupted)
    assert outcomes(run_dir) == [75, 0]
    first, last = sorted(run_dir.slurm.glob("outcome-*.json"))
    mails = [cluster.state(path.stem.removeprefix("outcome-")).get("MailType") for path in (first, last)]
    assert mails == [None, "END,FAIL"], "the run's end is told, the hand-over is not"
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
    answer = cluster.program("slurm", "submit", "pretrain", *cluster.arguments("twice", "slurm.partition=nowhere"))
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
