"""Interrupt a two-node run on the SLURM sandbox again and again, and compare it with one that nobody interrupted.

    python tools/preempt_campaign.py [--times 50] [--seed 1]
    python tools/preempt_campaign.py --inside --times 20 --out OUT

Each time, at a random moment, one of: the warning of the time limit (USR1 to the batch script), USR1 to all steps, a
requeue, which SLURM announces with TERM, and the loss of a rank. After each the job has to end within 60 seconds and
leave no process; in the end all losses and weights must be the uninterrupted run's, bit for bit.

With --inside a rank is killed each time, and the job has to start its ranks again itself; then the same is done to a
run of two local ranks. OUT has kills.csv, the seconds from each kill to the first step that is trained again, and
kills.png.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpt1_ds.common.rundir import RunDir  # noqa: E402
from gpt1_ds.scaling.tables import write_table  # noqa: E402
from gpt1_ds.training import restarts  # noqa: E402
from tools import runs  # noqa: E402
from tools.cluster import NODES, WAYS, Cluster, rank_of, sandbox  # noqa: E402
from tools.families import make_data  # noqa: E402

JOB, LOCAL = "two nodes, one job", "--nproc 2 --restarts"
Wait = Callable[[Callable[[], bool]], None]


def campaign(cluster: Cluster, times: int, seed: int, steps: int) -> collections.Counter[str]:
    draw, tally, slowest = random.Random(seed), collections.Counter[str](), 0.0
    arguments = [f"train.steps={steps}", "slurm.max_tries=10000", "slurm.poor_tries=0", "slurm.time=8:00:00"]
    run_dir, _ = cluster.submit("campaign", *arguments)
    while sum(tally.values()) < times:
        began = runs.last_step(run_dir)
        cluster.wait(lambda began=began: runs.last_step(run_dir) > began + 5 or run_dir.done.exists(), 300)
        if run_dir.done.exists():
            break
        time.sleep(draw.random() * 2)
        how = draw.choice(WAYS)
        slowest = max(slowest, cluster.interrupt(cluster.queued("campaign")[0], how, draw))
        tally[how] += 1
        print(f"{sum(tally.values())}: {how} at step {runs.last_step(run_dir)}", flush=True)
    cluster.wait_for_end("campaign", 1200)
    assert run_dir.done.exists(), cluster.said()
    print(f"slowest end of a job: {slowest:.1f} s")
    return tally


def kills(run_dir: RunDir, wait: Wait, pid: Callable[[int], int], times: int, seed: int) -> list[dict[str, Any]]:
    """Kills a random rank of two again and again, each time after a save. Returns each kill's rank, the last step
    before it, the step from which all began again, and the seconds until one was trained.
    """
    draw, found = random.Random(seed), []
    for number in range(1, times + 1):
        wait(lambda n=number: len(runs.events(run_dir, "started")) == n)
        began = runs.events(run_dir, "started")[-1]["step"]
        wait(lambda b=began: any(event["step"] > b for event in runs.events(run_dir, "saved")))
        time.sleep(draw.random() * 2)
        rank, step = draw.randrange(2), runs.last_step(run_dir)
        os.kill(pid(rank), signal.SIGKILL)
        killed = time.monotonic()
        wait(lambda n=number: len(runs.events(run_dir, "started")) > n)
        again = runs.events(run_dir, "started")[-1]["step"]
        wait(lambda a=again: runs.last_step(run_dir) > a)
        seconds = round(time.monotonic() - killed, 2)
        found.append({"kill": number, "rank": rank, "step": step, "again_at": again, "seconds": seconds})
        print(found[-1], flush=True)
    return found


def kills_in_a_job(cluster: Cluster, times: int, seed: int, steps: int) -> list[dict[str, Any]]:
    arguments = [f"train.steps={steps}", f"slurm.restarts={times}", "slurm.poor_tries=0", "slurm.time=8:00:00"]
    run_dir, job = cluster.submit("campaign", *arguments)
    wait = partial(cluster.wait, pause=0.02)
    found = kills(run_dir, wait, partial(rank_of, run_dir), times, seed)
    cluster.wait_for_end("campaign", 1200)
    assert run_dir.done.exists(), cluster.said()
    assert [path.name for path in run_dir.slurm.glob("try-*.json")] == [f"try-{job}-0.json"], "in one job"
    return [{"where": JOB, **one} for one in found]


def kills_of_local_ranks(arguments: list[str], times: int, seed: int) -> list[dict[str, Any]]:
    """As `gpt1-ds pretrain --nproc 2 --restarts TIMES` lives."""

    def life(arguments: list[str], ranks: int) -> int:
        target, config = "gpt1_ds.training.pretraining:pretrain", runs.configuration(arguments)
        return restarts.start(target, (config,), ranks, runs.folder(arguments), times)

    def pid(rank: int) -> int:
        return next(process.pid for process in run.processes() if process.name == f"rank-{rank}")

    run = runs.Background(arguments, 2, life)
    found = kills(run.run_dir, run.wait_for, pid, times, seed)
    run.join(1200)
    assert run.result == 0, run.error
    return [{"where": LOCAL, **one} for one in found]


def keep(out: Path, found: Sequence[dict[str, Any]]) -> None:
    """Writes kills.csv and kills.png, and prints medians and ranges."""
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "kills.csv", list(found[0]), found)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for where in (JOB, LOCAL):
        mine = [one for one in found if one["where"] == where]
        axes.plot([one["kill"] for one in mine], [one["seconds"] for one in mine], "o", label=where)
        seconds = sorted(one["seconds"] for one in mine)
        middle = statistics.median(seconds)
        print(f"{where}: {len(mine)} kills, median {middle:.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f})")
    axes.set(xlabel="kill", ylabel="seconds to the next step", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "kills.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help="kill ranks of a job that starts them again itself")
    parser.add_argument("--out", type=Path, help="where --inside keeps its times")
    options = parser.parse_args()
    if options.inside and options.out is None:
        parser.error("--inside needs --out")
    with tempfile.TemporaryDirectory() as scratch, sandbox(Path(scratch) / "s") as folder:
        place = Path(scratch)
        data = make_data(place)
        cluster, steps = Cluster(folder, place, data), 40 * options.times
        if options.inside:
            steps = 200 * options.times
            found = kills_in_a_job(cluster, options.times, options.seed, steps)
            tally = collections.Counter({"killed rank, inside": len(found)})
        else:
            tally = campaign(cluster, options.times, options.seed, steps)
        whole = [*NODES, f"data.path={data}", f"train.steps={steps}", f"run.dir={place / 'whole'}"]
        assert runs.pretrain(whole, 2) == 0
        there, here = cluster.run_dir("campaign"), runs.folder(whole)
        assert runs.losses(there) == runs.losses(here), "losses differ"
        assert runs.weights(there) == runs.weights(here), "weights differ"
        if options.inside:
            local = [*whole[:-1], f"run.dir={place / 'local'}"]
            found += kills_of_local_ranks(local, options.times, options.seed)
            assert runs.losses(runs.folder(local)) == runs.losses(here), "losses of local ranks differ"
            assert runs.weights(runs.folder(local)) == runs.weights(here), "weights of local ranks differ"
            tally["killed local rank"] = options.times
            keep(options.out, found)
        jobs = len(list(there.slurm.glob("try-*.json")))
        print(f"{sum(tally.values())} interruptions {dict(tally)}, {jobs} jobs, {steps} steps: bit-identical")


if __name__ == "__main__":
    main()
