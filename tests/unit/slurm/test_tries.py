"""What follows from how a job ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, LockedError, NodeError, UnsavedError, UserError, WorldError
from gpt1_ds.common.files import append, write_json
from gpt1_ds.common.rundir import RUN_VARIABLE, RunDir, read_jsonl
from gpt1_ds.slurm import tries
from gpt1_ds.slurm.faults import Fault, record_fault
from gpt1_ds.slurm.tries import Chain


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create(job=True)
    tries.begin(found, "7", "0")
    return found


def finish(run_dir: RunDir, saved: int, code: int | None, status: int = 1, most: int = 5) -> tries.Verdict:
    if saved:
        run_dir.checkpoint(saved).mkdir(exist_ok=True)
    if code is not None:
        write_json(run_dir.outcome("7"), {"code": code, "reason": "said", "step": saved})
    return tries.end(run_dir, "7", "0", status, Chain(max_tries=most))


@pytest.mark.parametrize(
    ("saved", "code", "status", "expected"),
    [
        (9, 0, 0, (0, False)),  # done, or stopped by a person
        (9, 75, 0, (75, True)),  # saved, to be continued
        (0, 75, 0, (75, False)),  # nothing was gained
        (9, 1, 1, (1, False)),  # diverged, say: the next would come to the same
        (0, 1, 1, (1, False)),
        (9, 2, 1, (2, False)),  # wrong arguments stay wrong
        (9, None, 137, (1, True)),  # killed
        (0, None, 137, (1, False)),
    ],
)
def test_verdicts(run_dir: RunDir, saved: int, code: int | None, status: int, expected: tuple[int, bool]) -> None:
    verdict = finish(run_dir, saved, code, status)
    assert (verdict.code, verdict.continues) == expected


def test_a_lost_rank_begins_again_in_its_job(run_dir: RunDir) -> None:
    """As often as is allowed, each time after a save, while time is left, and not where training gave up itself."""
    chain = Chain(restarts=2, deadline=time.time() + 600)
    said = []
    for saved in (2, 4, 4, 6, 8):
        run_dir.checkpoint(saved).mkdir(exist_ok=True)
        said.append(str(tries.end(run_dir, "7", "0", 137, chain)))
    assert said == ["here", "here", "stop", "continue", "continue"], "without a save it would be lost again"
    (note,) = (json.loads(path.read_text()) for path in run_dir.slurm.glob("try-*.json"))
    assert (note["restarts"], note["step"]) == (2, 4)
    assert [event["step"] for event in read_jsonl(run_dir.events)] == [2, 4]


@pytest.mark.parametrize(
    ("launcher", "lines", "rank", "reason"),
    [
        (
            "torchrun",
            [
                "gpt1-ds: rank 0 on node1 ended with exit code 1",
                "srun: error: node1: task 0: Exited with exit code 1",
                "gpt1-ds: rank 3 on node2 was killed by SIGKILL",
            ],
            3,
            "rank 3 on node2 was killed by SIGKILL",
        ),
        ("srun", ["srun: error: node2: task 3: Killed"], 3, "rank 3 on node2 was lost: Killed"),
        (
            "torchrun",
            ["srun: error: node2: task 1: Killed"],
            None,
            "the launcher of the ranks on node2 was lost: Killed",
        ),
        ("srun", ["srun: error: node1: tasks 0-2: Terminated"], None, "the ranks ended with 137 and left no word"),
    ],
)
def test_a_restart_names_the_rank_that_was_lost(
    run_dir: RunDir, launcher: str, lines: list[str], rank: int | None, reason: str
) -> None:
    run_dir.checkpoint(2).mkdir()
    run_dir.ended("7").write_text("".join(f"{line}\n" for line in lines))
    chain = Chain(restarts=2, launcher=launcher)
    assert tries.end(run_dir, "7", "0", 137, chain).reason.startswith(reason)
    (event,) = read_jsonl(run_dir.events)
    assert (event.get("rank"), event.get("host")) == (rank, "node2" if "node2" in reason else None)
    assert not run_dir.ended("7").exists(), "of this start alone"


@pytest.mark.parametrize(
    ("lost", "blamed", "spares", "said"),
    [
        (("node2",), (), 0, "here node2"),  # one was left, and takes its place
        (("node2",), (), -1, "again 1 60 node2"),
        ((), ("node2",), 1, "here node2"),
        ((), ("node2",), 0, "again 1 60 node2"),
        (("node2",), ("node3",), 1, "here node2,node3"),
        (("node2",), ("node3",), 0, "again 1 60 node2,node3"),
        ((), (), 1, "stop"),  # nothing was saved, and no node is to blame
    ],
)
def test_spare_nodes_take_the_place_of_those_that_are_lost_or_blamed(
    run_dir: RunDir, lost: tuple[str, ...], blamed: tuple[str, ...], spares: int, said: str
) -> None:
    if blamed:
        write_json(run_dir.fault("7", "0"), {"reason": "broken", "hosts": blamed})
    verdict = tries.end(run_dir, "7", "0", 1, Chain(restarts=2), tries.NodesLeft(lost, spares))
    assert str(verdict) == said
    hosts = [event["host"] for event in read_jsonl(run_dir.events)]
    assert hosts == ([", ".join(verdict.avoid)] if verdict.here else [])


@pytest.mark.parametrize(("trained", "said"), [([2, 2, 3], "stop"), ([2, 30, 3], "here")])
def test_a_job_that_restarts_again_and_again_and_gains_less_than_it_costs_stops(
    run_dir: RunDir, trained: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of its ranks takes 40 s, of which they train for so long before one is lost."""
    now = round(time.time())
    verdicts = []
    for number, seconds in enumerate(trained, 1):
        now += 40
        for event, at in (("started", now - seconds), ("saved", now)):
            line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "event": event}
            append(run_dir.events, json.dumps(line) + "\n")
        run_dir.checkpoint(number).mkdir()
        monkeypatch.setattr(time, "time", lambda at=now: at)
        verdicts.append(tries.end(run_dir, "7", "0", 137, Chain(restarts=9)))
    assert [str(verdict) for verdict in verdicts] == ["here", "here", said]
    assert ("the last 3 starts of this job's ranks trained for 2, 2 and 3 s" in verdicts[-1].reason) == (said == "stop")


@pytest.mark.parametrize(("code", "seconds"), [(1, 600), (75, 600), (None, 30)])
def test_other_ends_do_not_begin_again(run_dir: RunDir, code: int | None, seconds: float) -> None:
    run_dir.checkpoint(9).mkdir()
    if code is not None:
        write_json(run_dir.outcome("7"), {"code": code, "reason": "said", "step": 9})
    assert not tries.end(run_dir, "7", "0", 1, Chain(restarts=2, deadline=time.time() + seconds)).here


def test_there_is_a_last_try(run_dir: RunDir) -> None:
    for job in ("8", "9"):
        tries.begin(run_dir, job, "0")
    assert finish(run_dir, 9, 75, most=4).continues
    assert not finish(run_dir, 9, 75, most=3).continues


def test_progress_is_counted_from_where_the_job_began(run_dir: RunDir) -> None:
    run_dir.checkpoint(9).mkdir()
    tries.begin(run_dir, "7", "0")
    verdict = finish(run_dir, 9, 75)
    assert not verdict.continues
    assert "began at 9" in verdict.reason


def test_an_outcome_of_an_earlier_try_is_forgotten(run_dir: RunDir) -> None:
    write_json(run_dir.outcome("7"), {"code": 0, "reason": "done"})
    run_dir.job_stop("7").touch()
    tries.begin(run_dir, "7", "1")
    assert not run_dir.job_stop("7").exists(), "or the requeued job would stop at once"
    assert tries.end(run_dir, "7", "1", 137, Chain()).code == 1


def test_pauses_grow_to_an_hour_and_nodes_add_up() -> None:
    chain, pauses = Chain(pause=60, max_tries=10), []
    for number in range(9):
        verdict = tries.after_fault(Fault("broken", (f"node{number % 2}",)), chain)
        assert (verdict.code, verdict.continues) == (75, True)
        pauses.append(verdict.pause)
        chain = replace(chain, faults=verdict.faults, avoid=verdict.avoid)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert str(verdict) == "again 9 3600 node0,node1"
    last = tries.after_fault(Fault("broken"), chain)
    assert (last.code, str(last)) == (75, "stop")
    assert "10 jobs were tried" in last.reason


@pytest.mark.parametrize(
    ("steps", "told", "faults"),
    [
        ([], 2, 2),  # a new job
        ([10, 20, 30], 0, 0),  # each of its tries saved steps and handed over
        ([10, 20, 40, 40], 2, 2),
        ([10, None, 40], 0, 2),  # the second could not write
        ([40, 40], 2, 4),  # of a job after two faults
    ],
)
def test_a_requeue_that_continues_is_no_fault(steps: list[int | None], told: int, faults: int, run_dir: RunDir) -> None:
    """A chain by requeueing paused for an hour after its first fault, where it had handed over six times."""
    run_dir.checkpoint(40).mkdir(parents=True)
    for restart, step in enumerate(steps):
        if step is not None:
            write_json(run_dir.slurm / f"try-7-{restart}.json", {"job": "7", "step": step})
    assert tries.faults_before(run_dir, "7", str(len(steps)), told) == faults


def test_a_longer_pause_than_the_longest_is_the_user_s() -> None:
    assert tries.after_fault(Fault("broken"), Chain(pause=7200)).pause == 7200


@pytest.mark.parametrize(
    ("error", "hosts"),
    [
        (WorldError("the disk is full"), ()),
        (LockedError("another process writes"), ()),
        (UnsavedError("could not be saved"), ()),
        (NodeError("node2", "the network is down"), ("node2",)),
    ],
)
def test_a_word_of_a_process_is_another_try(
    run_dir: RunDir, error: UserError, hosts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(run_dir.path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    record_fault(error)
    verdict = finish(run_dir, 0, None)
    assert (verdict.code, verdict.continues, verdict.avoid) == (75, True, hosts)
    assert str(error) in verdict.reason
    tries.begin(run_dir, "7", "0")
    assert not finish(run_dir, 0, None).continues, "what an earlier try said is forgotten"


def test_what_was_judged_wrong_leaves_no_word(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(run_dir.path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    record_fault(ConfigError("model.layers=0 is too small"))
    assert not finish(run_dir, 0, None).continues


def test_a_full_disk_takes_no_word_and_is_found_out(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("200k")
    run_dir = RunDir(disk / "run")
    run_dir.create(job=True)
    tries.begin(run_dir, "7", "0")
    (disk / "filler").write_bytes(bytes(200_000))
    verdict = tries.end(run_dir, "7", "0", 1, Chain())
    assert (verdict.code, str(verdict)) == (75, "again 1 60 ")
    assert f"{run_dir.slurm}/" in verdict.reason
    assert "no space left" in verdict.reason


def test_a_fault_after_progress_is_the_first_again(run_dir: RunDir) -> None:
    run_dir.checkpoint(9).mkdir()
    write_json(run_dir.fault("7", "0"), {"reason": "broken", "hosts": ["node2"]})
    verdict = tries.end(run_dir, "7", "0", 1, Chain(faults=4, avoid=("node1",)))
    assert str(verdict) == "again 1 60 node2"


@pytest.fixture
def hand_over(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, int], tries.Verdict]:
    """The verdict on job N, which trained until it was asked to hand over: (N, its seconds, those of training)."""

    def end(number: int, seconds: int, trained: int) -> tries.Verdict:
        now = 1_800_000_000 + 1000 * number
        monkeypatch.setattr(time, "time", lambda: now - seconds)
        tries.begin(run_dir, str(number), "0")
        for event, at in (("started", now - trained), ("saved", now)):
            line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "event": event}
            append(run_dir.events, json.dumps(line) + "\n")
        run_dir.checkpoint(number).mkdir()
        write_json(run_dir.outcome(str(number)), {"code": 75, "reason": "handover", "step": number})
        monkeypatch.setattr(time, "time", lambda: now)
        return tries.end(run_dir, str(number), "0", 0, Chain())

    return end


def test_a_chain_that_costs_more_than_it_gains_stops(hand_over: Callable[[int, int, int], tries.Verdict]) -> None:
    assert hand_over(11, 40, 2).continues
    assert hand_over(12, 41, 2).continues
    verdict = hand_over(13, 40, 3)
    assert (verdict.code, verdict.continues) == (75, False)
    wanted = "the last 3 jobs trained for 2, 2 and 3 s of 40, 41 and 40 s: they cost more than they gain"
    assert wanted in verdict.reason


def test_a_job_that_gains_begins_the_count_anew(hand_over: Callable[[int, int, int], tries.Verdict]) -> None:
    for number, trained in enumerate([2, 2, 30, 2, 2]):
        assert hand_over(11 + number, 40, trained).continues
    assert not hand_over(20, 40, 2).continues
