"""Four ranks for hours, with a fault every few minutes, beside the same run without.

    python tools/soak.py [--minutes 30] [--every 120] [--seed 1]

Half of the time trains undisturbed, to know the pace; then the same run is disturbed by: a killed rank, all ranks
killed, SIGTERM, a stop by file, a rank that is stopped (SIGSTOP) for a while, and a truncated newest checkpoint, each
in its turn, in an order drawn anew each time. It is started again at once, as a job's successor would be. Every fault
has to leave a trace: the launcher says that ranks were killed, an event of the run, a process seen to be stopped.
Reported: steps made beside the undisturbed pace, and whether the losses are the undisturbed run's. It fails when losses
differ, or when a kind of fault was never seen to happen.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir, read_jsonl
from tools import runs
from tools.families import make_data

RANKS = 4
LAYOUT = [
    "parallel.tensor=2",
    "parallel.pipeline=2",
    "train.micro_batch=2",
    "checkpoint.every=50",
    "train.log_every=10",
]
SHORT = ["guard.step_timeout=30", "guard.lock_timeout=20"]
STOPPED = 5.0  # seconds for which a rank is stopped


def killed(run: runs.Background, ranks: list[int] | None) -> bool:
    """Kill ranks (None: all); whether the launcher said so."""
    run.signal(signal.SIGKILL, ranks)
    run.join(120)
    return "SIGKILL" in str(run.error)


def asked(run: runs.Background, ask: Callable[[], None], reason: str) -> bool:
    """Ask the run to stop; whether it did for this reason, and said so."""
    before = len(runs.events(run.run_dir, "stopped"))
    ask()
    run.join(120)
    return reason in [event["reason"] for event in runs.events(run.run_dir, "stopped")[before:]]


def stopped(run: runs.Background, rank: int) -> bool:
    """Stop a rank for a while; whether the system saw it stopped, no step was made, and steps followed."""
    (process,) = [process for process in run.processes() if process.name == f"rank-{rank}"]
    run.signal(signal.SIGSTOP, [rank])
    time.sleep(STOPPED / 2)
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    before = runs.last_step(run.run_dir)
    time.sleep(STOPPED / 2)
    stood_still = runs.last_step(run.run_dir) == before
    run.signal(signal.SIGCONT, [rank])
    run.wait_for(lambda: runs.last_step(run.run_dir) > before)
    run.signal(signal.SIGTERM)
    run.join(120)
    return state == "T" and stood_still


def tear(run: runs.Background) -> str | None:
    """Kill all ranks and cut a file of the newest checkpoint short: its name. None: there is none yet."""
    killed(run, None)
    newest = max(steps_in(run.run_dir.checkpoints), default=None)
    if newest is None:
        return None
    file = next((newest / "state").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    return newest.name


def disturb(run: runs.Background, fault: str, draw: random.Random) -> bool:
    """Whether the fault was seen to happen. A torn checkpoint is seen by the next start: see `set_aside`."""
    rank = draw.randrange(RANKS)
    if fault == "killed rank":
        return killed(run, [rank])
    if fault == "all killed":
        return killed(run, None)
    if fault == "sigterm":
        return asked(run, lambda: run.signal(signal.SIGTERM), "handover")
    if fault == "stop file":
        return asked(run, run.run_dir.stop.touch, "user")
    return stopped(run, rank)


FAULTS = ("killed rank", "all killed", "sigterm", "stop file", "stopped rank", "torn checkpoint")


def in_turn(draw: random.Random) -> Iterator[str]:
    """Every kind of fault once, then again in another order. A checkpoint is torn last, when there is one."""
    while True:
        yield from [*draw.sample(FAULTS[:-1], len(FAULTS) - 1), FAULTS[-1]]


def set_aside(run_dir: RunDir, names: list[str]) -> int:
    """How many of the torn checkpoints the run found out and set aside."""
    found = [event["checkpoint"] for event in read_jsonl(run_dir.events) if event["event"] == "set aside"]
    return sum(min(found.count(name), names.count(name)) for name in set(names))


def steps_within(
    arguments: list[str], seconds: float, every: float, faults: Iterator[str], draw: random.Random
) -> tuple[int, Counter[str]]:
    """Steps made in a wall-clock time with a fault now and then, and the faults that were seen to happen."""
    run_dir, seen, torn = runs.folder(arguments), Counter[str](), list[str]()
    end, begun = time.monotonic() + seconds, runs.last_step(run_dir)
    while time.monotonic() < end:
        run = runs.Background(arguments, RANKS)
        fault_at = time.monotonic() + every
        while run.thread.is_alive() and time.monotonic() < min(end, fault_at):
            time.sleep(0.5)
        assert run.thread.is_alive(), f"the run ended by itself: {run.error}"
        if time.monotonic() >= end:
            run_dir.stop.touch()
        elif (fault := next(faults)) != "torn checkpoint":
            seen[fault] += disturb(run, fault, draw)
        elif name := tear(run):
            torn.append(name)
        run.join(120)
        run_dir.stop.unlink(missing_ok=True)
    seen["torn checkpoint"] = set_aside(run_dir, torn)
    return runs.last_step(run_dir) - begun, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=120, help="seconds between faults")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    half = options.minutes * 30
    if half < (len(FAULTS) + 1) * options.every:
        parser.error(f"half of --minutes is too short for {len(FAULTS)} kinds of fault, one in --every seconds")
    place, draw = Path(tempfile.mkdtemp()), random.Random(options.seed)
    try:
        common = [*LAYOUT, *SHORT, f"data.path={make_data(place)}", "train.steps=1000000", "schedule.kind=constant"]
        calm, rough = ([*common, f"run.dir={place / name}"] for name in ("calm", "rough"))
        quiet, _ = steps_within(calm, half, half, in_turn(draw), draw)
        made, seen = steps_within(rough, half, options.every, in_turn(draw), draw)
        here, there = runs.losses(runs.folder(calm)), runs.losses(runs.folder(rough))
        shared = sorted(set(here) & set(there))
        print(f"undisturbed {quiet} steps, disturbed {made} ({made / quiet:.0%}) in {half:.0f} s each")
        print(f"faults seen to happen: {dict(seen)}; {len(shared)} logged losses in common")
        different = [step for step in shared if here[step] != there[step]]
        never = [fault for fault in FAULTS if not seen[fault]]
        if different or not shared:
            sys.exit(f"losses differ from step {different[0]} on" if different else "no logged losses in common")
        if never:
            sys.exit(f"never seen to happen: {', '.join(never)}")
        print("the same bits")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
