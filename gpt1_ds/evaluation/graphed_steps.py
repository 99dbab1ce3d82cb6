"""Steps of writing as CUDA graphs. A step of a small model is some hundred short kernels, and a host takes longer to
launch them one by one than a GPU to run them.

A graph repeats work on the same memory: it reads its token and the token's column from the device, and attention reads
a number of columns that stays the same for WIDTH steps (model/caches.py, `Place`). It proves itself, as a
micro-batch's does (engine/graphs.py): it has to give the bits of the pass that it was captured from. Where it does not,
or cannot be captured, a line says so, and steps are launched as before.

Shapes: R rows, V vocabulary rows of the model (padded).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gpt1_ds.common import log
from gpt1_ds.engine.graphs import CudaRecorder, Recorder, Replay, refusal
from gpt1_ds.model import kernels
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.caches import BlockCache, Caches, Place

WARM_UP = 2  # steps of one number of rows and columns before they get a graph
WIDTH = 256  # columns: attention reads so many more than there are at most, and a graph lasts for so many tokens

Step = Callable[[Tensor], Tensor]  # tokens [1, R] of the next column -> logits [R, V] of the one after it


@dataclass
class _Graph:
    replay: Replay
    tokens_1R: Tensor
    place: Place
    logits_RV: Tensor


class GraphedSteps:
    """`run` is `step`, launched as a graph where there is one. `caches` are those that `step` reads. While a graph is
    captured `lock` is held.
    """

    def __init__(self, step: Step, caches: Caches, recorder: Recorder, lock: AbstractContextManager[object]) -> None:
        self.step, self.caches, self.recorder, self.lock = step, caches, recorder, lock
        self.problem: str | None = None  # why there are no graphs
        self.graph: _Graph | None = None
        self._kind: tuple[int, int] | None = None
        self._steps = 0  # of this kind

    def forget(self) -> None:
        """Drops the graph, because the caches are in other memory now."""
        self.graph, self._kind = None, None

    def run(self, tokens_1R: Tensor) -> Tensor:
        columns, rows = self.caches.columns, tokens_1R.shape[1]
        kind = rows, min(columns.size, -(-(columns.seen + 1) // WIDTH) * WIDTH)
        if kind != self._kind:
            self.graph, self._kind, self._steps = None, kind, 0
        self._steps += 1
        if self.graph is not None:
            self.graph.tokens_1R.copy_(tokens_1R)
            self.graph.place.column_1.fill_(columns.seen)
            self.graph.replay()
            columns.advance(1)
            return self.graph.logits_RV.clone()
        if self.problem is not None or self._steps <= WARM_UP:
            return self.step(tokens_1R)
        return self._prove(tokens_1R.clone(), Place(tokens_1R.new_tensor([columns.seen]), kind[1]))

    def _prove(self, tokens_1R: Tensor, place: Place) -> Tensor:
        """Returns the logits of the ordinary pass; keeps its graph, if that gives the same bits."""

        def work() -> tuple[Tensor]:
            with self.caches.at(place):
                return (self.step(tokens_1R),)

        self.caches.clear_rest()
        (wanted_RV,) = self.recorder.run(work)
        try:
            with self.lock:
                replay, (logits_RV,) = self.recorder.capture(work)
            replay()
            if _same_bits(logits_RV, wanted_RV):
                self.graph = _Graph(replay, tokens_1R, place, logits_RV)
            else:
                self.problem = "a graph gives other logits than the pass that it was captured from"
        except Exception as error:  # whatever torch or a library raises: the ordinary pass works
            self.problem = refusal(error)
        self.caches.columns.advance(1)
        if self.problem is not None:
            log.say(f"text is written without CUDA graphs ({self.problem})")
        return wanted_RV


def graphed_steps(
    model: DenseModel, step: Step, caches: Caches, lock: AbstractContextManager[object]
) -> GraphedSteps | None:
    """Returns those of a model where a step can be a graph: on a GPU whose self-proof has passed, of blocks whose
    attention keeps keys and values (an LSTM has few kernels), on one rank.
    """
    device = model.tokens.weight.device
    is_attention = any(isinstance(cache, BlockCache) for cache in caches.layers)
    if not is_attention or model.tokens.tensor.size > 1 or not kernels.available(device):
        return None
    return GraphedSteps(step, caches, _recorder(device), lock)


@lru_cache(maxsize=8)
def _recorder(device: torch.device) -> CudaRecorder:
    """Returns the one of this process, so that a batch's graphs take the memory of those before it."""
    return CudaRecorder(device)


def _same_bits(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
