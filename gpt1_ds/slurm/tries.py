"""From one job of a run to the next: what was tried, how it ended, and whether it is worth another job.

`slurm/try-<job>-<restart>.json` is written before a job's ranks start, `slurm/outcome-<job>.json` by rank 0 when they
stop in an orderly way. What ended without an outcome was killed, crashed, or met a fault (faults.py).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint.manifest import step_of
from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, EXIT_USAGE
from gpt1_ds.common.files import discard, write_json
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.slurm import losses
from gpt1_ds.slurm.faults import Fault, find, forget, read_note
from gpt1_ds.slurm.losses import LostRank

LONGEST_PAUSE = 3600  # seconds
SHORTEST = 60  # seconds that are left to a job whose ranks are worth starting again


@dataclass(frozen=True)
class Chain:
    """What a job knows of those before it, and what the user allows."""

    faults: int = 0  # jobs before it, in a row, that a fault ended
    avoid: tuple[str, ...] = ()  # the nodes that they were on
    pause: int = 60  # seconds after the first fault
    max_tries: int = 100
    poor_tries: int = 3  # jobs in a row that may cost more than they gain; 0: any
    restarts: int = 0  # times that one job may start its ranks again itself
    deadline: float = math.inf  # seconds since 1970 at which its ranks would hand over
    launcher: str = "torchrun"  # of its ranks


@dataclass(frozen=True)
class NodesLeft:
    """What became of a job's nodes."""

    lost: tuple[str, ...] = ()  # of those of its ranks
    spares: int = 0  # how many are left beyond those that ranks need; negative where they are too few


@dataclass(frozen=True)
class Verdict:
    """How a job ended, and what follows it."""

    code: int  # its exit code
    continues: bool  # in another job, or in this one
    reason: str
    faults: int = 0  # that ended jobs in a row, this one included
    pause: int = 0  # seconds until the next job begins
    avoid: tuple[str, ...] = ()  # nodes that the ranks stay off
    here: bool = False  # this job starts its ranks again

    def __str__(self) -> str:
        """Returns the line for launch/life.sh and next.sh."""
        if self.here:
            return f"here {','.join(self.avoid)}".rstrip()
        if not self.continues:
            return "stop"
        return f"again {self.faults} {self.pause} {','.join(self.avoid)}" if self.faults else "continue"


def begin(run_dir: RunDir, job: str, restart: str) -> None:
    """Records that a job begins, and at which step. What there is under its number is of an earlier try."""
    run_dir.outcome(job).unlink(missing_ok=True)
    discard(run_dir.job_stop(job))
    forget(run_dir, job)
    note = {"job": job, "restart": int(restart or 0), "step": newest_step(run_dir), "host": os.uname().nodename}
    write_json(run_dir.slurm / f"try-{job}-{restart or 0}.json", {**note, "time": round(time.time())})


def faults_before(run_dir: RunDir, job: str, restart: str, known: int) -> int:
    """Returns how many tries in a row came to nothing before this one: those that SLURM has requeued under this job's
    number since one of them saved a step, and the `known` ones of jobs before it, unless one did. A try that left no
    note came to nothing: the disk may have been full.
    """
    requeued = int(restart or 0)
    with suppress(OSError):  # the fault itself
        here = newest_step(run_dir)
        notes = [read_note(run_dir.slurm / f"try-{job}-{number}.json") for number in range(requeued)]
        saved = [number for number, note in enumerate(notes) if note.get("step", here) < here]
        if saved:
            return requeued - 1 - saved[-1]
    return known + requeued


def end(run_dir: RunDir, job: str, restart: str, status: int, chain: Chain, nodes: NodesLeft = NodesLeft()) -> Verdict:
    """Returns the verdict on the try that `begin` recorded, whose ranks ended with `status`."""
    path = run_dir.slurm / f"try-{job}-{restart or 0}.json"
    note = read_note(path)
    began = note.get("step", 0)
    outcome = read_note(run_dir.outcome(job))
    step = newest_step(run_dir)
    fault = None if outcome else _with_lost(find(run_dir, job), nodes.lost)
    made = len(list(run_dir.slurm.glob("try-*.json")))
    if fault is not None:
        others = set(fault.hosts) - set(nodes.lost)
        if fault.hosts and len(others) <= nodes.spares and _may_restart(note, chain):
            where = LostRank(", ".join(fault.hosts), None, "")
            if _restarts(run_dir, path, note, fault.reason, where):
                reason = f"{fault.reason}; the ranks begin again at step {step} on the nodes that are left"
                return Verdict(EXIT_FAILURE, True, reason, avoid=fault.hosts, here=True)
        return after_fault(fault, chain if step <= began else replace(chain, faults=0, avoid=()), made)
    code = outcome.get("code", status or EXIT_FAILURE)
    if code == 0:
        return Verdict(0, False, str(outcome["reason"]))
    if code == EXIT_USAGE:
        return Verdict(code, False, "configuration or data is wrong; another try would say the same")
    loss = losses.find(run_dir, job, chain.launcher)
    reason = str(loss or f"the ranks ended with {status} and left no word; see logs/")
    reason = str(outcome.get("reason", reason))
    if outcome and code == EXIT_FAILURE:  # training itself gave up, and the next try would repeat it bit for bit
        return Verdict(code, False, f"{reason}; another try would come to the same")
    if code not in (EXIT_CONTINUE, EXIT_FAILURE, EXIT_USAGE):
        code = EXIT_FAILURE
    if step <= began:
        return Verdict(code, False, f"{reason}; no step was saved since it began at {began}, so it is not tried again")
    if made >= chain.max_tries:
        return Verdict(code, False, f"{reason}; {made} jobs were tried, as many as slurm.max_tries allows")
    if not outcome and _may_restart(note, chain):
        note, cost = _counted_start(run_dir, note, chain.poor_tries)
        if cost:
            return Verdict(code, False, f"{reason}; {cost}")
        if _restarts(run_dir, path, note, reason, loss):
            return Verdict(code, True, f"{reason}; they begin again at step {step}, in this job", here=True)
    cost = _cost(run_dir, path, note, chain.poor_tries)
    if cost:
        return Verdict(code, False, f"{reason}; {cost}")
    return Verdict(code, True, f"{reason} after step {step}")


def _with_lost(fault: Fault | None, lost: tuple[str, ...]) -> Fault | None:
    """Returns the fault that ended a job, with the nodes that it has lost."""
    if not lost:
        return fault
    if fault is None:
        return Fault(f"{', '.join(lost)}: no step starts there any more, or the site wants to repair it", lost)
    return replace(fault, hosts=tuple(dict.fromkeys([*lost, *fault.hosts])))


def _may_restart(note: dict[str, Any], chain: Chain) -> bool:
    """Returns whether the job may still start its ranks again itself."""
    return note.get("restarts", 0) < chain.restarts and time.time() + SHORTEST < chain.deadline


def _restarts(run_dir: RunDir, path: Path, note: dict[str, Any], reason: str, loss: LostRank | None) -> bool:
    """Records that the job starts its ranks again itself, and returns whether it could: what it has gained so far
    counts, and the next end is judged by what is saved from here on.
    """
    made, since = note.get("restarts", 0), note.get("since", note.get("time", 0))
    gained = note.get("gained", 0) + (_trained(run_dir, since) or 0)
    restarted = {"restarts": made + 1, "since": round(time.time()), "gained": gained, "step": newest_step(run_dir)}
    try:
        write_json(path, {**note, **restarted})
    except OSError:  # its disk has a fault: another job may be elsewhere
        return False
    forget(run_dir, str(note.get("job", "")))
    about = {"job": note.get("job"), "restarts": made + 1, "reason": reason}
    if loss is not None:
        about |= {"host": loss.host} | ({} if loss.rank is None else {"rank": loss.rank})
    run_dir.add_event("restarted", step=restarted["step"], **about, ended=round(time.time(), 2))
    return True


def after_fault(fault: Fault, chain: Chain, made: int = 0) -> Verdict:
    """Returns what follows a fault in a run of which `made` jobs were recorded: another try, later and elsewhere."""
    in_a_row = chain.faults + 1
    if max(in_a_row, made) >= chain.max_tries:
        allowed = f"{max(in_a_row, made)} jobs were tried, as many as slurm.max_tries allows"
        return Verdict(EXIT_CONTINUE, False, f"{fault.reason}; {allowed}")
    pause = min(chain.pause * 2 ** min(in_a_row - 1, 20), max(chain.pause, LONGEST_PAUSE))
    avoid = tuple(dict.fromkeys([*chain.avoid, *fault.hosts]))
    elsewhere = f", not on {', '.join(avoid)}" if avoid else ""
    reason = f"{fault.reason}; tried again in {pause} s{elsewhere}"
    return Verdict(EXIT_CONTINUE, True, reason, in_a_row, pause, avoid)


def _cost(run_dir: RunDir, path: Path, note: dict[str, Any], allowed: int) -> str:
    """Returns why a chain of jobs is not worth continuing, or nothing. A job gains the time from its start of training
    to its last save; the last `allowed` that are known must each have gained less than the rest of their time.
    """
    last = _trained(run_dir, note.get("since", note.get("time", 0)))
    if last is None:
        return ""
    trained = last + note.get("gained", 0)  # also before ranks were started again
    note |= {"trained": trained, "seconds": round(time.time()) - note["time"]}
    with suppress(OSError):
        write_json(path, note)
    notes = [note, *(read_note(other) for other in run_dir.slurm.glob("try-*.json") if other != path)]
    known = sorted((note for note in notes if "trained" in note), key=lambda note: note["time"])
    way_out = "give slurm.time more, or slurm.warning less"
    return _poor("jobs", [(note["trained"], note["seconds"]) for note in known], allowed, way_out)


def _counted_start(run_dir: RunDir, note: dict[str, Any], allowed: int) -> tuple[dict[str, Any], str]:
    """Returns (the note of a job with what this start of its ranks gained and cost, why the next would not be worth
    it).
    """
    since = note.get("since", note.get("time", 0))
    trained = _trained(run_dir, since)
    if trained is None:
        return note, ""
    starts = [*note.get("starts", ()), [trained, round(time.time()) - since]]
    way_out = "find out what ends the ranks, or make checkpoint.every smaller"
    return {**note, "starts": starts}, _poor("starts of this job's ranks", starts, allowed, way_out)


def _poor(what: str, pairs: Sequence[Sequence[int]], allowed: int, way_out: str) -> str:
    """Returns why another of these is not worth it, or nothing. `pairs` are (seconds trained, seconds in all) of each;
    the last `allowed` must each have trained for less than half of their time.
    """
    last = pairs[-allowed:]
    if not 0 < allowed <= len(last) or any(2 * trained >= seconds for trained, seconds in last):
        return ""
    return (
        f"the last {allowed} {what} trained for {_listed(trained for trained, _ in last)} s of "
        f"{_listed(seconds for _, seconds in last)} s: they cost more than they gain; {way_out}, or let it "
        "be with slurm.poor_tries=0"
    )


def _trained(run_dir: RunDir, since: int) -> int | None:
    """Returns the seconds between the last start of training and the last save after it, when they are later than
    `since`.
    """
    last = {event["event"]: event["time"] for event in read_jsonl(run_dir.events)}
    try:
        started, saved = (datetime.fromisoformat(last[event]).timestamp() for event in ("started", "saved"))
    except (KeyError, ValueError):
        return None
    return round(saved - started) if min(started, saved) >= since > 0 and saved >= started else None


def _listed(numbers: Iterable[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def newest_step(run_dir: RunDir) -> int:
    """Returns the step of the newest published checkpoint; 0 without one."""
    return max((step_of(path) or 0 for path in run_dir.checkpoints.glob("*step-*")), default=0)
