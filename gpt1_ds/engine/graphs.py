"""Forward and backward pass of a micro-batch as one CUDA graph: the host launches it as a whole.

A graph repeats what it saw of the device's work, on the same memory. A micro-batch is therefore copied into static
buffers; dropout keys are among them, so no generator's state is. Weights and fp32 gradients stay where they are. What
only the host does is not repeated: `Gradients` says what that is.

Every graph proves itself, because memory that it does not own or work that it missed would be wrong silently: the same
micro-batch goes through the ordinary pass and through the graph, and the bits of loss and gradients are compared. Where
they differ on any rank, or a rank cannot capture, all ranks run the ordinary pass from then on; a line says so.

Memory: all graphs share one pool, because results are cloned before another one is launched. What the ordinary passes
held is given back before capture. The proof keeps gradients in the host's memory.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gpt1_ds.common import log

WARM_UP = 2  # ordinary passes of a kind before the one that its graph is compared with: they compile, and tune kernels
SHAPES = 2  # of micro-batches that get graphs; the others, of fine-tuning, run the ordinary pass
PACKAGE = Path(__file__).parents[1]

Tensors = tuple[Tensor, ...]
Pass = Callable[[Tensors, int, bool], Tensors]  # (micro-batch, its number in the step, is it the last) -> loss, scores
Replay = Callable[[], None]


class Gradients(Protocol):
    """What passes add to: `buffers` on the device, and what the host knows of them."""

    buffers: list[Tensor]

    def marks(self) -> Any:
        """Returns what the host knows of the buffers."""

    def mark(self, marks: Any) -> None: ...


class Recorder(Protocol):
    def run(self, work: Callable[[], Tensors]) -> Tensors:
        """Runs `work` now, as it will be captured."""

    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        """Captures `work`. Returns a function that repeats its part on the device, and the tensors with its results."""


class CudaRecorder:
    """Ordinary passes run in the stream that is captured: autograd keeps the stream in which it first met a weight.

    torch ends a pool of memory with the last graph in it, and refuses to open it again. One small graph that is never
    launched keeps it open, so that graphs that are made again take the memory of those before them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = None
        self._keeper: Replay | None = None

    def run(self, work: Callable[[], Tensors]) -> Tensors:
        computing = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(computing)
        with torch.cuda.stream(self.stream):
            results = work()
        computing.wait_stream(self.stream)
        return results

    def capture(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        if self._keeper is None:
            self.pool = torch.cuda.graph_pool_handle()
            self._keeper, _ = self._captured(lambda: (torch.zeros(1, device=self.device),))
        return self._captured(work)

    def _captured(self, work: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        graph = torch.cuda.CUDAGraph()
        try:
            # the outer context leaves the stream where the capture fails; other threads (NCCL's watchdog, the copies of
            # later batches) may ask and allocate meanwhile
            with (
                torch.cuda.stream(self.stream),
                torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"),
            ):
                results = work()
        except BaseException:
            # a capture that was broken off never ends for torch's allocator, which then gives no memory back that two
            # streams have used: a run's batches, until it has no more
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.stream.device_index, self.pool)
            raise
        return graph.replay, results


@dataclass
class _Kind:
    """Micro-batches that one graph serves: of the same shapes, at the same place of a step."""

    inputs: Tensors  # static
    passes: int = 0
    replay: Replay | None = None
    results: Tensors = ()
    marks: Any = None


@dataclass
class _Kept:
    """A copy on the host of what passes add to."""

    buffers: list[Tensor]
    marks: Any


class GraphedPasses:
    """`run` is `work`, launched as a graph where there is one. All ranks give micro-batches of the same shapes.

    `reduces`: the last micro-batch of a step does more than the others. `capturing` is entered around a capture.
    `gather` gives every rank's value to every rank.
    """

    def __init__(
        self,
        work: Pass,
        gradients: Gradients,
        recorder: Recorder,
        reduces: bool,
        capturing: Callable[[], AbstractContextManager[None]],
        gather: Callable[[str | None], list[str | None]],
    ) -> None:
        self.work, self.gradients, self.recorder, self.reduces = work, gradients, recorder, reduces
        self.capturing, self.gather = capturing, gather
        self.problem: str | None = None  # why there are no graphs
        self._kinds: dict[Any, _Kind] = {}

    @property
    def count(self) -> int:
        """Graphs in use."""
        return sum(kind.replay is not None for kind in self._kinds.values())

    def release(self) -> None:
        """Drops all graphs; the next micro-batches make them again."""
        self._kinds.clear()

    def run(self, tensors: Tensors, number: int, last: bool) -> Tensors:
        """Returns the loss and the scores, in memory of their own."""
        kind = self._kind(tensors, number, last)
        if kind is None:
            return self.work(tensors, number, last)
        for static, tensor in zip(kind.inputs, tensors, strict=True):
            static.copy_(tensor)
        if kind.replay is None:
            kind.passes += 1
            if kind.passes > WARM_UP:
                return self._prove(kind, number, last)
            return self.recorder.run(lambda: self.work(kind.inputs, number, last))
        return self._replay(kind)

    def _kind(self, tensors: Tensors, number: int, last: bool) -> _Kind | None:
        if self.problem is not None:
            return None
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        key = shapes, number == 0, last and self.reduces
        if key not in self._kinds:
            known = {shapes for shapes, *_ in self._kinds}
            if shapes not in known and len(known) == SHAPES:
                return None
            self._kinds[key] = _Kind(tuple(torch.empty_like(tensor) for tensor in tensors))
        return self._kinds[key]

    def _replay(self, kind: _Kind) -> Tensors:
        assert kind.replay is not None, "it is captured"
        kind.replay()
        self.gradients.mark(kind.marks)
        return tuple(result.clone() for result in kind.results)

    def _prove(self, kind: _Kind, number: int, last: bool) -> Tensors:
        """Runs the ordinary pass, then its graph, and keeps the graph if it gives the same bits on every rank. Returns
        the results of the pass.
        """

        def work() -> Tensors:
            return self.work(kind.inputs, number, last)

        before = self._keep()
        results = self.recorder.run(work)
        after = self._keep()
        self.gradients.mark(before.marks)
        proven = False
        if self._agreed(self._capture(kind, work)):  # a graph may hold collectives: all ranks launch it, or none
            self._restore(before)
            found = self._difference(results, self._replay(kind), after)
            proven = not any(self.gather(found))
            if not proven:  # on any rank: all of them repeat the pass, because it may hold collectives
                self._restore(before)
                own = self._difference(results, self.recorder.run(work), after)
                self._agreed(None if found is None else _explained(found, own))
        if not proven:
            self.release()
            self._restore(after)
        return results

    def _capture(self, kind: _Kind, work: Callable[[], Tensors]) -> str | None:
        """Returns why it was not possible."""
        gc.collect()  # what is in reference cycles holds memory, or nodes of autograd that know another stream
        try:
            with self.capturing():
                kind.replay, kind.results = self.recorder.capture(work)
        except Exception as error:  # whatever torch, a compiler or a library raises: the ordinary pass works
            return refusal(error)
        kind.marks = self.gradients.marks()
        return None

    def _difference(self, results: Tensors, again: Tensors, after: _Kept) -> str | None:
        """Returns how a pass that was done again differs from the first one, or None."""
        named = {"loss": (results[0], again[0])}
        named |= {f"scores {number}": pair for number, pair in enumerate(zip(results[1:], again[1:], strict=True))}
        buffers = zip(after.buffers, self.gradients.buffers, strict=True)
        named |= {f"gradient buffer {number}": pair for number, pair in enumerate(buffers)}
        found = [_apart(name, *pair) for name, pair in named.items()]
        return ", ".join(one for one in found if one is not None) or None

    def _agreed(self, problem: str | None) -> bool:
        """Returns whether no rank has a problem. Else there are no graphs from here on, and rank 0 says why."""
        for rank, found in enumerate(self.gather(problem)):
            if found is not None:
                self.problem = f"rank {rank}: {found}"
                log.say(f"train.cuda_graphs: micro-batches run without CUDA graphs from here on ({self.problem})")
                return False
        return True

    def _keep(self) -> _Kept:
        return _Kept([buffer.to("cpu", copy=True) for buffer in self.gradients.buffers], self.gradients.marks())

    def _restore(self, kept: _Kept) -> None:
        for buffer, value in zip(self.gradients.buffers, kept.buffers, strict=True):
            buffer.copy_(value)
        self.gradients.mark(kept.marks)


def refusal(error: Exception) -> str:
    """Returns why there is no graph, in one line. The whole traceback goes into the rank's log; where there is none, to
    stderr.

    What fails within a capture breaks it, and torch then raises an error of its own about the broken capture: the
    reason is the first error of the chain.
    """
    logging.getLogger(__name__).warning("no CUDA graph:\n%s", "".join(traceback.format_exception(error)))
    chain = list(_chain(error))
    first = chain[-1]
    reason = f"{type(first).__name__}: {str(first).splitlines()[0] if str(first) else 'no message'}"
    # an error that a library caught has no frame of ours; the one that it raised in its place has
    place = next((found for one in reversed(chain) if (found := _place(one)) is not None), None)
    return reason if place is None else f"{reason} ({place})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, the one that was handled when it was raised, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(error: BaseException) -> str | None:
    """Returns file:line of the innermost frame inside this package; this file only says that a graph was captured."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE) and path != Path(__file__):
            return f"{path.relative_to(PACKAGE.parent)}:{frame.lineno}"
    return None


def _explained(found: str, own: str | None) -> str:
    """Returns what a graph that differs says of the kernels: `own` is how the ordinary pass differs from itself."""
    what = "a graph gives another loss or other gradients than the pass that it was captured from"
    twice = "has the same bits twice" if own is None else f"differs from itself, too: {own}"
    return f"{what}: {found}; the ordinary pass {twice}"


def _apart(name: str, wanted: Tensor, found: Tensor) -> str | None:
    """Returns how many numbers of a tensor have other bits, and how far they are apart; None where none has."""
    wanted, found = wanted.cpu(), found.cpu()
    if torch.equal(_bits(wanted), _bits(found)):
        return None
    unlike = _bits(wanted) != _bits(found)
    count = int(unlike.sum())
    most = float((wanted[unlike].double() - found[unlike].double()).abs().max())
    return f"{name} ({count} of {unlike.numel()} numbers, by up to {most:.3g})"


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bits of fp32 numbers: what is not a number equals itself."""
    return tensor.view(torch.int32)
