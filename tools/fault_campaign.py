"""Kill runs on many layouts, in every phase of a run, and start them again; compare them with undisturbed runs.

    python tools/fault_campaign.py [--family gpt1] [--kills 100] [--seed 1] [--delays 0.3] [--out FOLDER]

Each run trains 40 steps on the next layout, with background saves or without, while delays are injected into its saves,
loads and evaluations. After a few kills it is left in peace and the next layout has its turn. A kill is aimed at a
phase (half of them at a save) and hits one rank, all ranks, or the launcher; counted is the phase that it hit. After
every kill the newest published checkpoint is still there and whole, and the run resumes from it. At the end of every
run losses and weights are those of an undisturbed run, bit for bit.

With --out the runs and what was seen (`kills.jsonl`) are kept, and the same command continues an interrupted campaign.
tests/faults/test_kills.py runs a few of these.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from tools.families import add_family, family_data
from tools.faults.attempt import AIMS, STEPS, TINY, VICTIMS, Attempt, folder
from tools.faults.ledger import Finished, Kill, Ledger, shortfalls, table

Layouts = Mapping[str, tuple[int, list[str]]]
Results = tuple[dict[int, float], dict[str, str]]  # losses by step, hashes of the final weights
LAYOUTS: Layouts = {
    "one": (1, []),
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "dp2-zero1": (2, []),
    "dp2-zero3": (2, ["parallel.zero=3"]),
}  # of the tests
CAMPAIGN: Layouts = {
    **LAYOUTS,
    "dp2-zero0": (2, ["parallel.zero=0"]),
    "dp2-zero2": (2, ["parallel.zero=2"]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2"]),
}
KILLS_PER_RUN = 3


def pretrain_with_delays(config: Any, delay: float, seed: int) -> int:
    """Runs on every rank: the product's own life of a run, slowed down at random between the steps of its protocols."""
    from gpt1_ds.checkpoint import folders, manager, reader, restore, shard
    from gpt1_ds.training import pretraining

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
        *((manager, name) for name in ("complete", "commit", "write_atomic", "sync_folder")),
        *((shard, "write_tensors"), (folders, "steps_in"), (restore, "verify_files"), (reader, "assemble")),
        *((os, "rename"), (shutil, "rmtree"), (pretraining, "held_out_loss")),
    ):
        setattr(module, name, slow(getattr(module, name)))
    return pretraining.pretrain(config)


def newest_good(run_dir: RunDir) -> int:
    """Step of the newest published checkpoint, which must verify; 0 when there is none."""
    folders = steps_in(run_dir.checkpoints)
    if not folders:
        return 0
    verify_files(folders[-1], manifest.read(folders[-1]))
    return int(folders[-1].name.removeprefix("step-"))


def results(run_dir: RunDir) -> Results:
    losses = {line["step"]: line["loss"] for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"}
    return losses, manifest.read(run_dir.checkpoint(STEPS))["parameters"]


def undisturbed_run(overrides: list[str], ranks: int) -> Results:
    """All steps in one go; what an interrupted campaign has left of one is not used."""
    run_dir = folder(overrides)
    if not run_dir.done.exists():
        shutil.rmtree(run_dir.path, ignore_errors=True)
        assert launch.launch("gpt1_ds.training.pretraining:pretrain", (load([], [*TINY, *overrides]),), ranks) == 0
    return results(run_dir)


def disturbed_run(
    start: Callable[[int], Attempt], run: Kill, seed: int, limits: tuple[int, int], ledger: Ledger
) -> None:
    """Kill and restart one run until it is done. `limits`: kills of this run, and of all, before it is left in peace.

    `run` says what is the same in all kills of this run.
    """
    most, most_of_all = limits
    while True:
        number = ledger.kills_of(run.run)
        draw = random.Random(f"{seed} {run.run} {number}")
        attempt = start(draw.randrange(1 << 30))
        run_dir, phase = attempt.run_dir, None
        published = newest_good(run_dir)
        aim, victim = draw.choices(list(AIMS), list(AIMS.values()))[0], draw.choice(VICTIMS)
        try:
            if number < most and len(ledger.kills) < most_of_all:
                phase = attempt.strike(aim, victim, draw)
            code = attempt.end()
        finally:
            attempt.stop()
        assert phase or code == 0, f"ended with {code} by itself; see {attempt.log}"
        now = newest_good(run_dir)
        assert now >= published, f"a checkpoint was lost: {published} -> {now}"
        if phase is not None:
            reached = max((line["step"] for line in read_jsonl(run_dir.metrics)), default=0)
            ledger.add(Kill(run.run, run.layout, run.ranks, victim, aim, phase, max(0, reached - now)))
        if run_dir.done.exists():
            return


def layout_of(run: int, seed: int, layouts: Layouts) -> tuple[str, str]:
    """(layout, checkpoint.background) of a run: each layout once, then again in another order."""
    order = list(layouts)
    random.Random(f"{seed} order {run // len(order)}").shuffle(order)
    return order[run % len(order)], random.Random(f"{seed} background {run}").choice(("on", "off"))


def campaign(
    data: Path,
    place: Path,
    kills: int,
    seed: int,
    delay: float,
    layouts: Layouts = CAMPAIGN,
    kills_per_run: int = KILLS_PER_RUN,
    extra: Sequence[str] = (),
) -> Ledger:
    """Go on until so many kills were made and every run that was hit has ended as if it had not been."""
    ledger = Ledger(place / "kills.jsonl")
    common = [f"data.path={data}", f"run.dir={place}", *extra]

    @cache
    def undisturbed(layout: str) -> Results:
        ranks, overrides = layouts[layout]
        return undisturbed_run([*overrides, *common, f"run.name=calm-{layout}"], ranks)

    while len(ledger.kills) < kills or ledger.kills_of(len(ledger.finished)):
        run = len(ledger.finished)
        layout, background = layout_of(run, seed, layouts)
        ranks, overrides = layouts[layout]
        overrides = [*overrides, *common, f"run.name=run-{run}", f"checkpoint.background={background}"]
        start = partial(Attempt, __file__, ranks, overrides, delay)
        disturbed_run(start, Kill(run, layout, ranks, "", "", "", 0), seed, (kills_per_run, kills), ledger)
        assert results(folder(overrides)) == undisturbed(layout), f"{layout}: not what an undisturbed run gives"
        ledger.add(Finished(run, layout, background))
        shutil.rmtree(folder(overrides).path)
        print(f"run {run} ({layout}, background {background}): bit-identical; {len(ledger.kills)} kills", flush=True)
    return ledger


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        ranks, delay, seed, *overrides = sys.argv[2:]
        arguments = (load([], [*TINY, *overrides]), float(delay), int(seed))
        sys.exit(launch.launch("tools.fault_campaign:pretrain_with_delays", arguments, int(ranks)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_family(parser)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delays", type=float, default=0.3, metavar="SECONDS")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep what was seen here, and continue from it")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interrupted"))  # so that the run under way ends with us
    with tempfile.TemporaryDirectory() as temporary:
        place, began = options.out or Path(temporary), time.monotonic()
        data, family = family_data(place, options.family)
        ledger = campaign(data, place / "runs", options.kills, options.seed, options.delays, extra=family)
    print(table(ledger.kills))
    victims = dict(Counter(kill.victim for kill in ledger.kills))
    print(f"{len(ledger.kills)} kills {victims} in {len(ledger.finished)} runs, {time.monotonic() - began:.0f} s")
    print(f"{ledger.saves_of_several_ranks} of them inside a save of several ranks")
    lost = max(kill.lost for kill in ledger.kills)
    print(f"0 checkpoints lost, at most {lost} steps since the last save redone, all runs bit-identical")
    if short := shortfalls(ledger):
        sys.exit("; ".join(short))


if __name__ == "__main__":
    main()
