"""What comparing the copies that ranks hold in common costs beside a training step, in turns, on local ranks.

    python tools/bench_replicas.py [--rounds 15] [key=value...]

Per layout: medians and the middle half of the rounds of a step and of a comparison, and the comparison in percent of
the guard.compare_every steps that lie between two. With data parallelism every weight is held in common.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config import load
from gpt1_ds.launcher import launch

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
    for layout, words in LAYOUTS.items():
        overrides = [*MODEL, *words, *options.overrides]
        steps, comparisons = launch.run("tools.bench_replicas:measure", (overrides, options.rounds), 2)[0]
        every = load([], overrides).guard.compare_every
        cost = statistics.median(comparisons) / (every * statistics.median(steps))
        print(f"{layout:20} step {_spread(steps)}, comparison {_spread(comparisons)}, every {every} steps: {cost:.3%}")
    return 0


def measure(overrides: list[str], rounds: int) -> tuple[list[float], list[float]]:
    """Runs on every rank: seconds of steps and of comparisons."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.checkpoint.replicas import Replicas
    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
    from gpt1_ds.engine.process_groups import ProcessGroups, connect

    config = load([], overrides)
    torch.set_num_threads(1)
    connect(600)
    assert config.model.vocab_size is not None, "it is among the overrides"
    engine = build_engine(config, ProcessGroups(config))
    replicas = Replicas(engine)
    torch.manual_seed(1)
    tokens = torch.randint(config.model.vocab_size, (config.train.global_batch, config.model.context + 1)).numpy()
    rows = [Rows(tokens[numbers], numbers) for numbers in batch_shape(config, engine.groups).rows()]

    def step() -> None:
        engine.step(training_batches(engine.objective, rows, config.run.seed, 1), 1e-4)

    def compare() -> None:
        assert replicas.compare() is None, "the copies are equal"

    def timed(action: Callable[[], Any]) -> float:
        dist.barrier()
        began = time.perf_counter()
        action()
        dist.barrier()
        return time.perf_counter() - began

    for _ in range(2):
        step()
        compare()
    steps, comparisons = zip(*((timed(step), timed(compare)) for _ in range(rounds)), strict=True)
    dist.destroy_process_group()
    return list(steps), list(comparisons)


def _spread(seconds: list[float]) -> str:
    low, median, high = (1000 * value for value in statistics.quantiles(seconds, n=4))
    return f"{median:.1f} ms ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    raise SystemExit(main())
