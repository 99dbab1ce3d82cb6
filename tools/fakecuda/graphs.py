"""CUDA graphs on the fake device: a graph repeats the pass itself, so that it is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gpt1_ds.engine.graphs import GraphedPasses, Replay, Tensors
from tools.fakecuda.counter import active


@contextmanager
def graph() -> Iterator[None]:
    """Counts what happens within as one launch, that of a CUDA graph."""
    found = [(counter.counts, len(counter.counts.kernels)) for counter in active]
    yield
    for counts, first in found:
        counts.graphs.append(range(first, len(counts.kernels)))


class ProvenPasses(GraphedPasses):
    """Every micro-batch is launched as a graph, as one is that has proved itself."""

    def run(self, tensors: Tensors, number: int, last: bool) -> Tensors:
        static = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in tensors)
        with graph():
            results = self.work(static, number, last)
        return tuple(result.clone() for result in results)


class Repeats:
    """In the place of CudaRecorder: a replay does all of the work again, on any device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def run(self, work: Callable[[], Tensors]) -> Tensors:
        return work()

    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        results = work()

        def replay() -> None:
            with graph():
                for result, again in zip(results, work(), strict=True):
                    result.copy_(again)

        return replay, results


def install(proof: bool) -> None:
    """Engines that this process builds have graphs: with `proof` such as prove themselves at once, else proven ones."""
    from gpt1_ds.engine import graphs
    from gpt1_ds.engine.deepspeed import micro_batch_graphs
    from gpt1_ds.engine.process_groups import ProcessGroups

    if proof:
        graphs.WARM_UP, micro_batch_graphs.CudaRecorder = 0, Repeats  # type: ignore[misc, assignment]
        ProcessGroups.gather = lambda self, value: [value]  # type: ignore[method-assign]  # the others are not there
    else:
        micro_batch_graphs.GraphedPasses = ProvenPasses  # type: ignore[misc]
