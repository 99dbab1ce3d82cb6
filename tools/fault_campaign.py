"""Kill runs at random moments and let them go on, until the counts are reached; then compare with undisturbed runs.

    python tools/fault_campaign.py [--kills 100] [--seed 1] [--delays 0.3]

Each run trains 40 steps on a layout drawn at random, with background saves or without, while delays are injected
between the steps of saving and of loading. Kills hit one rank, all ranks, or the launcher. After every kill: the newest
published checkpoint is still there and whole, and the run goes on from it. At the end of every run: losses and weights
are those of an undisturbed run, bit for bit. tests/faults/test_kills.py runs a few of these.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import load
from gpt1_ds.parallel import launch

STEPS, EVERY = 40, 5
TINY = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.global_batch=8"),
    *("train.micro_batch=2", "train.log_every=1", "train.eval_every=0", "train.eval_batches=1"),
    *(f"train.steps={STEPS}", f"checkpoint.every={EVERY}", "guard.lock_timeout=10"),
]
LAYOUTS = {
    "one": (1, []),
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "dp2-zero1": (2, []),
    "dp2-zero3": (2, ["parallel.zero=3"]),
}
VICTIMS = ("one rank", "all ranks", "launcher")


@dataclass
class Tally:
    """What a campaign found."""

    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    steps_lost: list[int] = field(default_factory=list)


def pretrain_with_delays(config: Any, delay: float, seed: int) -> int:
    """Runs on every rank: the product's own life of a run, slowed down at random between the steps of its protocols."""
    from gpt1_ds.checkpoint import publish, state, store
    from gpt1_ds.training import pretrain

    draw = random.Random(f"{seed} {os.environ['RANK']} {time.time()}")

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*arguments: Any, **keywords: Any) -> Any:
            for moment in ("before", "after"):
                if draw.random() < (0.02 if function.__name__ == "assemble" else 0.5):  # it is called per tensor
                    time.sleep(draw.random() * delay)
                if moment == "before":
                    result = function(*arguments, **keywords)
            return result

        return slowed

    for module, name in (
        *((publish, name) for name in ("complete", "publish", "write_atomic", "sync_folder")),
        *((store, "write_tensors"), (store, "steps_in"), (manifest, "verify_files"), (state, "assemble")),
        *((os, "rename"), (shutil, "rmtree")),
    ):
        setattr(module, name, slow(getattr(module, name)))
    return pretrain.pretrain(config)


class Attempt:
    """One start of a run, as a process of its own that can be killed like any other."""

    def __init__(self, layout: str, words: list[str], delay: float, seed: int) -> None:
        self.run_dir = folder(words)
        command = [sys.executable, __file__, "--child", layout, str(delay), str(seed), *words]
        self.errors = open(self.run_dir.path.with_suffix(".log"), "ab")  # noqa: SIM115 - closed in `end`
        self.process = subprocess.Popen(command, stderr=self.errors, stdout=self.errors)

    def ranks(self) -> list[int]:
        """Process ids of its ranks: children of its fork server."""
        found = []
        for server in _children(self.process.pid):
            found += [pid for pid in _children(server) if b"forkserver" in _command(pid)]
        return found

    def end(self) -> int:
        code = self.process.wait(timeout=120)
        self.errors.close()
        return code


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def folder(words: list[str]) -> RunDir:
    config = load([], [*TINY, *words])
    return RunDir(Path(config.run.dir) / config.run.name)


def newest_good(run_dir: RunDir) -> int:
    """Step of the newest published checkpoint, which must verify; 0 when there is none."""
    folders = steps_in(run_dir.checkpoints)
    if not folders:
        return 0
    manifest.verify_files(folders[-1], manifest.read(folders[-1]))
    return int(folders[-1].name.removeprefix("step-"))


def results(run_dir: RunDir) -> tuple[dict[int, float], dict[str, str]]:
    """(losses by step, hashes of the final weights)."""
    losses = {line["step"]: line["loss"] for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"}
    return losses, manifest.read(run_dir.checkpoint(STEPS))["parameters"]


def strike(attempt: Attempt, draw: random.Random, tally: Tally) -> bool:
    """Wait for a random moment, then kill; False when the run ended first."""
    moment = draw.choice(("any", "any", "saving", "loading"))
    deadline = time.monotonic() + 60
    while attempt.process.poll() is None and time.monotonic() < deadline and not attempt.ranks():
        time.sleep(0.02)
    if moment == "saving":
        while attempt.process.poll() is None and not list(attempt.run_dir.checkpoints.glob(".step-*.tmp")):
            time.sleep(0.002)
    time.sleep(draw.random() * {"any": 6.0, "saving": 0.6, "loading": 1.5}[moment])
    if attempt.process.poll() is not None:
        return False
    victim = draw.choice(VICTIMS)
    pids = {
        "launcher": [attempt.process.pid],
        "all ranks": attempt.ranks(),
        "one rank": draw.sample(attempt.ranks(), 1),
    }
    for pid in pids[victim]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    tally.kills[victim] += 1
    tally.moments[moment] += 1
    return True


def disturbed_run(layout: str, words: list[str], delay: float, draw: random.Random, tally: Tally, limit: int) -> None:
    """Kill and restart one run until it is done (or `limit` kills have been made, after which it is left in peace)."""
    run_dir = folder(words)
    run_dir.path.parent.mkdir(parents=True, exist_ok=True)
    while not run_dir.done.exists():
        published = newest_good(run_dir)
        attempt = Attempt(layout, words, delay, draw.randrange(1 << 30))
        killed = sum(tally.kills.values()) < limit and strike(attempt, draw, tally)
        pids = attempt.ranks()
        code = attempt.end()
        deadline = time.monotonic() + 10
        while any(b"forkserver" in _command(pid) for pid in pids):
            assert time.monotonic() < deadline, "ranks outlived their launcher"
            time.sleep(0.05)
        assert killed or code == 0, f"ended with {code} by itself; see {run_dir.path.with_suffix('.log')}"
        now = newest_good(run_dir)
        assert now >= published, f"a checkpoint was lost: {published} -> {now}"
        reached = max((line["step"] for line in read_jsonl(run_dir.metrics)), default=0)
        tally.steps_lost.append(max(0, reached - now))
    tally.runs += 1


def campaign(data: Path, place: Path, kills: int, seed: int, delay: float) -> Tally:
    draw, tally = random.Random(seed), Tally()

    @cache
    def undisturbed(layout: str) -> tuple[dict[int, float], dict[str, str]]:
        words = [*LAYOUTS[layout][1], f"data.path={data}", f"run.dir={place}", f"run.name=calm-{layout}"]
        config = load([], [*TINY, *words])
        assert launch.launch("gpt1_ds.training.pretrain:pretrain", (config,), LAYOUTS[layout][0]) == 0
        return results(folder(words))

    while sum(tally.kills.values()) < kills:
        layout, background = draw.choice(list(LAYOUTS)), draw.choice(("on", "off"))
        words = [*LAYOUTS[layout][1], f"data.path={data}", f"run.dir={place}", f"run.name=run-{tally.runs}"]
        disturbed_run(layout, [*words, f"checkpoint.background={background}"], delay, draw, tally, kills)
        assert results(folder(words)) == undisturbed(layout), f"{layout}: not what an undisturbed run gives"
        print(
            f"run {tally.runs} ({layout}, background {background}): bit-identical; kills {dict(tally.kills)}",
            flush=True,
        )
    return tally


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        layout, delay, seed, *words = sys.argv[2:]
        config = load([], [*TINY, *words])
        arguments = (config, float(delay), int(seed))
        sys.exit(launch.launch("tools.fault_campaign:pretrain_with_delays", arguments, LAYOUTS[layout][0]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delays", type=float, default=0.3, metavar="SECONDS")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tools.layouts import make_data

    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        tally = campaign(make_data(Path(place)), Path(place) / "runs", options.kills, options.seed, options.delays)
    lost = max(tally.steps_lost)
    print(f"{sum(tally.kills.values())} kills {dict(tally.kills)} at {dict(tally.moments)} in {tally.runs} runs")
    print(f"0 checkpoints lost, at most {lost} steps since the last save redone, all runs bit-identical")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
