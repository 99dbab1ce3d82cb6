"""What train.watch costs: steps that are watched and steps that are not, in turns, on local ranks.

    python tools/bench_watch.py [--rounds 25] [key=value...]

Per layout and level: the median and the middle half of a step that is not watched, of what a watched step takes more
(each against the one of its round), and the same in percent of a step when one of train.log_every steps is watched.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from tools.bench.ranks import built, seconds_of_all, spread

MODEL = [
    *("model.layers=4", "model.width=256", "model.heads=4", "model.context=128", "model.vocab_size=8192"),
    *("train.global_batch=16", "train.micro_batch=4", "data.path=none"),
]
LAYOUTS = {
    "one process": (1, []),
    "DP 2, ZeRO 1": (2, []),
    "TP 2": (2, ["parallel.tensor=2"]),
    "PP 2": (2, ["parallel.pipeline=2"]),
    "DP 2, ZeRO 1, bf16": (2, ["train.precision=bf16"]),
}
LEVELS = ("off", "norms", "all")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    for layout, (ranks, arguments) in LAYOUTS.items():
        overrides = [*MODEL, *arguments, *options.overrides]
        found = launch.run("tools.bench_watch:measure", (overrides, options.rounds), ranks)[0]
        every, plain = load([], overrides).train.log_every, found["off"]
        step = statistics.median(plain)
        print(f"{layout}: a step takes {spread([1000 * one for one in plain], 'ms')}")
        for level in LEVELS[1:]:
            more = [watched - before for watched, before in zip(found[level], plain, strict=True)]
            shares = [100 * one / every / step for one in more]
            print(f"  {level:6} {spread([1000 * one for one in more], 'ms more')}; {spread(shares, '% of a step')}")
    return 0


def measure(overrides: list[str], rounds: int) -> dict[str, list[float]]:
    """Runs on every rank: seconds of steps by level; those of a round follow one another, in an order that turns."""
    import torch.distributed as dist

    from gpt1_ds.engine.watch import Watch

    config, engine, batches = built(overrides)
    watches = {
        level: Watch(engine, load([], [*overrides, f"train.watch={level}"]), config.batch_sizes) for level in LEVELS
    }

    def step(level: str) -> None:
        watches[level].begin(True)
        watches[level].end(1, engine.step(batches, 1e-4))

    found: dict[str, list[float]] = {level: [] for level in LEVELS}
    for number in range(rounds + 2):
        for place in range(len(LEVELS)):
            level = LEVELS[(number + place) % len(LEVELS)]
            seconds = seconds_of_all(partial(step, level))
            if number >= 2:  # libraries and caches begin with the first rounds
                found[level].append(seconds)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
