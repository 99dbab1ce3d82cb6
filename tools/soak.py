"""Four ranks for hours, with a random fault every few minutes, beside the same run without.

    python tools/soak.py [--minutes 30] [--every 300] [--seed 1]

Half of the time trains undisturbed, to know the pace; then the same run is disturbed by: a killed rank, all ranks
killed, SIGTERM, a stop by file, a rank that is stopped (SIGSTOP) for a while, and a truncated newest checkpoint. It is
started again at once each time, as a job's successor would be. Reported: steps made beside the undisturbed pace, and
whether the losses are the undisturbed run's.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.checkpoint.folders import steps_in
from tests.helpers import runs
from tools.layouts import make_data

RANKS = 4
LAYOUT = [
    "parallel.tensor=2",
    "parallel.pipeline=2",
    "train.micro_batch=2",
    "checkpoint.every=50",
    "train.log_every=10",
]
SHORT = ["guard.step_timeout=30", "guard.lock_timeout=20"]
FAULTS = ("killed rank", "all killed", "sigterm", "stop file", "stopped rank", "torn checkpoint")


def disturb(run: runs.Background, fault: str, draw: random.Random) -> None:
    victims = [draw.randrange(RANKS)]
    if fault == "killed rank":
        run.signal(signal.SIGKILL, victims)
    elif fault == "all killed":
        run.signal(signal.SIGKILL)
    elif fault == "sigterm":
        run.signal(signal.SIGTERM)
    elif fault == "stop file":
        run.run_dir.stop.touch()
    elif fault == "stopped rank":
        run.signal(signal.SIGSTOP, victims)
        time.sleep(5)
        run.signal(signal.SIGCONT, victims)
    else:
        run.signal(signal.SIGKILL)
        run.join(120)
        newest = max(steps_in(run.run_dir.checkpoints), default=None)
        file = next(newest.glob("*.safetensors"), None) if newest else None
        if file is not None:
            file.write_bytes(file.read_bytes()[:-1])


def steps_within(words: list[str], seconds: float, every: float, draw: random.Random) -> tuple[int, list[str]]:
    """Steps made in a wall-clock time with a fault now and then, and the faults."""
    end, faults, begun = time.monotonic() + seconds, [], runs.last_step(runs.folder(words))
    while time.monotonic() < end:
        run = runs.Background(words, RANKS)
        fault_at = time.monotonic() + every
        while run.thread.is_alive() and time.monotonic() < min(end, fault_at):
            time.sleep(0.5)
        if run.thread.is_alive():
            fault = draw.choice(FAULTS) if time.monotonic() < end else "stop file"
            faults.append(fault)
            disturb(run, fault, draw)
            if fault == "stopped rank":
                continue_until = min(end, time.monotonic() + every)
                while run.thread.is_alive() and time.monotonic() < continue_until:
                    time.sleep(0.5)
                run.run_dir.stop.touch()
        run.join(120)
        run.run_dir.stop.unlink(missing_ok=True)
    return runs.last_step(runs.folder(words)) - begun, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=300, help="seconds between faults")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    place, draw = Path(tempfile.mkdtemp()), random.Random(options.seed)
    try:
        data, half = make_data(place), options.minutes * 30
        common = [*LAYOUT, *SHORT, f"data.path={data}", "train.steps=1000000", "schedule.kind=constant"]
        calm, rough = ([*common, f"run.dir={place / name}"] for name in ("calm", "rough"))
        quiet, _ = steps_within(calm, half, half, draw)
        made, faults = steps_within(rough, half, options.every, draw)
        here, there = runs.losses(runs.folder(calm)), runs.losses(runs.folder(rough))
        shared = sorted(set(here) & set(there))
        assert shared, "the runs have steps in common"
        assert all(here[step] == there[step] for step in shared), "losses differ"
        print(f"undisturbed {quiet} steps, disturbed {made} ({made / quiet:.0%}) in {half:.0f} s each")
        print(f"faults: {dict(collections.Counter(faults))}; {len(shared)} logged losses in common: the same bits")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
