"""Ranks that live through a row and act when they are told: contenders that take turns keep their state."""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from gpt1_ds.config import Config, load
from gpt1_ds.launcher import launch

RATE = 2e-4  # of learning: low enough for layouts to stay close to one another in bf16


class Ranks:
    """`module:function` is called with `arguments` on every rank and gives what the rank does when it is told to."""

    def __init__(self, target: str, arguments: tuple[Any, ...], ranks: int, threads: int) -> None:
        pairs = [launch.server().Pipe() for _ in range(ranks)]
        self.pipes = [here for here, _ in pairs]
        theirs = [there for _, there in pairs]
        self.failure: BaseException | None = None
        self.thread = threading.Thread(
            target=self._run, args=((target, arguments, threads, theirs), ranks), daemon=True
        )
        self.thread.start()

    def ask(self, *given: Any) -> list[Any]:
        """What every rank answers, in rank order. Raises a rank's error."""
        self.tell(*given)
        return self.hear()

    def tell(self, *given: Any) -> None:
        for pipe in self.pipes:
            pipe.send(given)

    def hear(self) -> list[Any]:
        return [self._answer(pipe) for pipe in self.pipes]

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # of a rank that failed
                pipe.send(None)
        self.thread.join()

    def _answer(self, pipe: Connection) -> Any:
        while not pipe.poll(0.2):
            if not self.thread.is_alive():
                raise self.failure or RuntimeError("a rank ended early")
        return pipe.recv()

    def _run(self, arguments: tuple[Any, ...], ranks: int) -> None:
        try:
            launch.run("tools.bench.ranks:serve", arguments, ranks)
        except BaseException as error:
            self.failure = error


@contextlib.contextmanager
def started(target: str, arguments: tuple[Any, ...], ranks: int, threads: int = 1) -> Iterator[Ranks]:
    made = Ranks(target, arguments, ranks, threads)
    try:
        yield made
    finally:
        made.close()


def serve(target: str, arguments: tuple[Any, ...], threads: int, pipes: Sequence[Connection]) -> None:
    """Runs on every rank until it is told None."""
    import torch

    torch.set_num_threads(threads)
    module, _, name = target.partition(":")
    act = getattr(importlib.import_module(module), name)(*arguments)
    pipe = pipes[int(os.environ["RANK"])]
    for given in iter(pipe.recv, None):
        pipe.send(act(*given))


def trainer(given: list[str], vocabulary: int) -> Callable[..., dict[str, float]]:
    """Build the engine that `given` describes on this rank. Told a step's number (and its threads) it trains that step
    and answers with its seconds (of all ranks), loss and gradient norm; every layout is given the same tokens.
    """
    import numpy as np
    import torch
    import torch.distributed as dist

    from gpt1_ds.config import with_vocabulary
    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.engine.session import keep_freed_blocks

    keep_freed_blocks()
    config = load([], given)
    connect(600)
    groups = ProcessGroups(config)
    engine = build_engine(with_vocabulary(config, vocabulary), groups)
    shape = config.train.global_batch, config.model.context + 1

    def step(number: int, threads: int = 1) -> dict[str, float]:
        torch.set_num_threads(threads)
        drawn = np.random.default_rng(number).random(shape) ** 3 * vocabulary  # small ids are frequent: to be learnt
        rows = [Rows(drawn.astype(np.int64)[part], part) for part in batch_shape(config, groups).rows()]
        batches = training_batches(engine.objective, rows, config.run.seed, number)
        dist.barrier()
        began = time.perf_counter()
        result = engine.step(batches, RATE)
        dist.barrier()
        return {"seconds": time.perf_counter() - began, "loss": result.loss, "norm": result.grad_norm}

    return step


def built(overrides: list[str]) -> tuple[Config, Any, Any]:
    """Returns the configuration, the engine of this rank, and its micro-batches of one batch of random tokens."""
    import torch

    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
    from gpt1_ds.engine.process_groups import ProcessGroups, connect

    config = load([], overrides)
    torch.set_num_threads(1)
    connect(600)
    assert config.model.vocab_size is not None, "it is among the overrides"
    engine = build_engine(config, ProcessGroups(config))
    torch.manual_seed(1)
    tokens = torch.randint(config.model.vocab_size, (config.train.global_batch, config.model.context + 1)).numpy()
    rows = [Rows(tokens[numbers], numbers) for numbers in batch_shape(config, engine.groups).rows()]
    return config, engine, training_batches(engine.objective, rows, config.run.seed, 1)


def seconds_of_all(action: Callable[[], object]) -> float:
    """How long the slowest rank takes."""
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - began


def spread(values: Sequence[float], unit: str) -> str:
    """The median and the middle half."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.2f} {unit} ({low:.2f} to {high:.2f})"
