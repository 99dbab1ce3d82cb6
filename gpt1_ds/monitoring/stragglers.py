"""Names ranks that are slower than the others in what they do alone: reading their batches, and computing forward and
backward until they first wait for another rank.

A step takes as long as its slowest rank, and every rank measures the same step. What differs is the time before a rank
waits. Each rank measures its own time, and at logged steps all ranks exchange it: one number a rank, which changes
nothing that is computed. Ranks are compared with those that hold the same layers. Ranks of a tensor-parallel group wait
for one another in every layer, so that all of a group look slow; ZeRO 2 and 3, CUDA graphs, and gradients that are
reduced under the backward pass hide a slow rank in part.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from statistics import median, median_low
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gpt1_ds.common import log
from gpt1_ds.common.files import this_node
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.process_groups import Layout, ProcessGroups

OWN = ("data", "load", "forward", "loss", "backward")  # first words of phases in which a rank waits for no other
BETWEEN = ("sending", "receiving", "update")  # of phases that such ones may follow in the same step
RATIO = 1.3  # times the median of its peers: a rank that takes longer is slow in an interval between logged steps
INTERVALS, STEPS = 10, 50  # a window has so many intervals and steps at least
MOSTLY = 0.8  # of a window's intervals: a rank that is slow in so many is a straggler, until it is fast in so many
MOST = 1024  # marks of a device between two logged steps


class Clock(Protocol):
    """`mark` marks this moment; `seconds` is the time between two marks, when both have passed."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float: ...


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class DeviceClock:
    """The clock of the GPU: the host is ahead of it, and does not see how long it takes."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) / 1e3 if end.query() else 0.0


class OwnTime:
    """Measures how long this rank was in phases of its own, in each step."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._marks, self._in_step = clock, 0, False
        self._begin: Any = None  # the mark at which phases of its own began; None: it is in another phase
        self._steps: list[list[tuple[Any, Any]]] = []  # of each step the spans in which it was in its own phases

    def begin(self, phase: str) -> None:
        kind = phase.partition(" ")[0]
        if kind not in OWN and kind not in BETWEEN:
            self._in_step = False  # gradients are reduced, say, or it is an evaluation: what follows is part of that
        elif kind == "data":
            self._in_step = True
            self._steps.append([])
        own = self._in_step and kind in OWN
        if own == (self._begin is not None) or self._marks >= MOST:
            return
        mark = self._clock.mark()
        self._marks += 1
        if own:
            self._begin = mark
        else:
            self._steps[-1].append((self._begin, mark))
            self._begin = None

    def lap(self) -> tuple[int, float]:
        """Returns how many steps were since the last lap, and the median over them of the seconds in its own phases."""
        steps = [sum(self._clock.seconds(begin, end) for begin, end in spans) for spans in self._steps if spans]
        self._steps.clear()
        self._begin, self._marks = None, 0
        return len(steps), median(steps) if steps else 0.0


class Window:
    """The last intervals between logged steps: of each the number of steps, and every rank's own seconds in a step."""

    def __init__(self, layout: Layout) -> None:
        world = range(layout.tensor * layout.pipeline * layout.data)
        self._peers = [layout.members(rank, "tensor", "data") for rank in world]
        self._intervals: deque[tuple[int, Sequence[float]]] = deque()

    def add(self, steps: int, seconds: Sequence[float]) -> None:
        self._intervals.append((steps, seconds))
        while len(self._intervals) > INTERVALS and self._steps - self._intervals[0][0] >= STEPS:
            self._intervals.popleft()

    @property
    def _steps(self) -> int:
        return sum(steps for steps, _ in self._intervals)

    def stragglers(self, before: Set[int] = frozenset()) -> dict[int, tuple[float, float]]:
        """Returns the ranks that are slow in most intervals, and those of `before` that are not fast in most, each with
        the median of its seconds and of its peers'; none while the window is not full.
        """
        if len(self._intervals) < INTERVALS or self._steps < STEPS:
            return {}
        slow_ranks = {}
        enough = MOSTLY * len(self._intervals)
        for rank, peers in enumerate(self._peers):
            pairs = [(own[rank], median_low(own[peer] for peer in peers)) for _, own in self._intervals]
            slow = sum(seconds > RATIO * of_peers for seconds, of_peers in pairs)
            if slow >= enough or (rank in before and len(pairs) - slow < enough):
                slow_ranks[rank] = (median(seconds for seconds, _ in pairs), median(of_peers for _, of_peers in pairs))
        return slow_ranks


class Stragglers:
    """Finds ranks that are slow; rank 0 reports them. All ranks make it together, and call `beat` in the place of the
    watchdog's, to which it passes every phase on; at logged steps that call is a collective.
    """

    def __init__(self, run_dir: RunDir, groups: ProcessGroups, beat: Callable[..., None]) -> None:
        self._run_dir, self._groups, self._beat = run_dir, groups, beat
        self._hosts = groups.gather(this_node())
        self._own = OwnTime(DeviceClock() if dist.get_backend() == "nccl" else HostClock())
        self._window, self._named, self._step = Window(groups.layout), set[int](), 0

    def beat(self, phase: str, step: int | None = None) -> None:
        self._step = step or self._step
        self._own.begin(phase)
        self._beat(phase, step)
        if phase == "log":
            self._compare()

    def _compare(self) -> None:
        steps, seconds = self._own.lap()
        every = torch.zeros(self._groups.world, dtype=torch.float64)
        every[self._groups.rank] = seconds
        dist.all_reduce(every, group=self._groups.control_group)
        self._window.add(steps, every.tolist())
        slow_ranks = self._window.stragglers(self._named)
        for rank in sorted(slow_ranks.keys() - self._named) if self._groups.rank == 0 else ():
            own, of_peers = slow_ranks[rank]
            host = self._hosts[rank]
            log.say(
                f"rank {rank} on {host} is slow: it takes {own:.3g} s of a step for what it does alone, others of its "
                f"stage {of_peers:.3g} s; all wait for it"
            )
            self._run_dir.add_event(
                "straggler", step=self._step, rank=rank, host=host, seconds=round(own, 6), others=round(of_peers, 6)
            )
        self._named = set(slow_ranks)


def watched(run_dir: RunDir, groups: ProcessGroups, beat: Callable[..., None]) -> Callable[..., None]:
    """Returns a `beat` that also finds stragglers; `beat` itself where no rank has a peer to be compared with."""
    return Stragglers(run_dir, groups, beat).beat if groups.layout.data > 1 else beat
