"""What comparing the copies that ranks hold in common costs beside a training step, in turns, on local ranks.

    python tools/bench_replicas.py [--rounds 15] [key=value...]

Per layout: medians and the middle half of the rounds of a step and of a comparison, and the comparison in percent of
the guard.compare_every steps that lie between two. With data parallelism every weight is held in common.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from tools.bench.ranks import built, seconds_of_all, spread

MODEL = [
    *("model.layers=4", "model.width=256", "model.heads=4", "model.context=128", "model.vocab_size=8192"),
    *("train.global_batch=8", "train.micro_batch=4", "data.path=none"),
]
LAYOUTS = {
    "DP 2, ZeRO 0": ["parallel.zero=0"],
    "DP 2, ZeRO 1": [],
    "TP 2": ["parallel.tensor=2"],
    "PP 2": ["parallel.pipeline=2"],
    "DP 2, ZeRO 1, bf16": ["train.precision=bf16"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    for layout, arguments in LAYOUTS.items():
        overrides = [*MODEL, *arguments, *options.overrides]
        steps, comparisons = launch.run("tools.bench_replicas:measure", (overrides, options.rounds), 2)[0]
        every = load([], overrides).guard.compare_every
        cost = statistics.median(comparisons) / (every * statistics.median(steps))
        step, comparison = (spread([1000 * one for one in found], "ms") for found in (steps, comparisons))
        print(f"{layout:20} step {step}, comparison {comparison}, every {every} steps: {cost:.3%}")
    return 0


def measure(overrides: list[str], rounds: int) -> tuple[list[float], list[float]]:
    """Runs on every rank: seconds of steps and of comparisons."""
    import torch.distributed as dist

    from gpt1_ds.checkpoint.replicas import Replicas

    _, engine, batches = built(overrides)
    replicas = Replicas(engine)

    def compare() -> None:
        assert replicas.compare() is None, "the copies are equal"

    turns = [(seconds_of_all(lambda: engine.step(batches, 1e-4)), seconds_of_all(compare)) for _ in range(rounds + 2)]
    dist.destroy_process_group()
    steps, comparisons = zip(*turns[2:], strict=True)  # libraries and caches begin with the first rounds
    return list(steps), list(comparisons)


if __name__ == "__main__":
    raise SystemExit(main())
