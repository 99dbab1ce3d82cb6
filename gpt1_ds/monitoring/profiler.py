"""`train.profile`, or a file PROFILE in the run folder: a trace of a few steps on every rank, and one summary of where
their time went, as plain spans and sums. Who asks by the file also gets a snapshot of a GPU's memory.

They are read as the profiler holds them. Its own `events()` takes a tenth of a millisecond of each, a minute for some
steps of a small model.

The phases that a rank reports to the watchdog become the ranges of the trace, so that both name the same phases.
Nothing is installed outside of the window, and nothing inside it changes a number of the training.
"""

from __future__ import annotations

import bisect
import contextlib
import gzip
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import naming, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.device import held_bytes
from gpt1_ds.monitoring.watchdog import SAVE, HangWatchdog
from gpt1_ds.tracking import phases
from gpt1_ds.tracking.phases import Operator, Recording, TimeSpan, counted

OUTSIDE = "(outside of operators: Python, waiting)"
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_COMMUNICATION = "nccl"  # in the name of a kernel that waits for other ranks
_RUNTIME_CALL = re.compile("(cuda|cu|hip)[A-Z]")  # begins the names of calls of CUDA's and ROCm's
_OF_THE_PROFILER = "profiler::"  # begins the names of its own calls


class Event(NamedTuple):
    """An operator, a range, a call of CUDA's or a kernel; nanoseconds. `by` is the id of the operator that launched a
    kernel; it is 0 where none did, as of the kernels of a CUDA graph. A kernel has the `id` of the call that launched
    it; calls and operators are numbered apart.
    """

    name: str
    begin: int
    end: int
    thread: int = 0
    on_device: bool = False
    is_range: bool = False
    is_call: bool = False
    id: int = 0
    by: int = 0
    shapes: str = ""  # of a matrix product
    flops: float = 0.0


def read(
    recorder: profile, steps: Sequence[str], phases: Sequence[str], memory: list[int], origin_ns: int
) -> Recording:
    """Returns what was recorded during these steps and phases. Times are seconds since `origin_ns`."""
    events = sorted(_events(recorder), key=lambda event: (event.begin, -event.end))
    ours = {*steps, *phases}
    said = [_span(event, origin_ns) for event in events if event.is_range and event.name in ours]
    found_phases = [span for span in said if span.name not in steps]
    kernels = [event for event in events if event.on_device and event.name not in ours]  # torch repeats ranges there
    return Recording(
        steps=[TimeSpan(span.name.removeprefix("step "), span.begin, span.end) for span in said if span.name in steps],
        phases=found_phases,
        memory=memory,
        operators=operators([event for event in events if not event.on_device], kernels),
        kernels=launched(events, kernels, found_phases, origin_ns),
    )


def _events(recorder: profile) -> Iterator[Event]:
    assert recorder.profiler is not None, "it has recorded"
    results = recorder.profiler.kineto_results
    assert results is not None, "it has stopped"
    for event in results.events():
        name, on_device = event.name(), event.device_type() != DeviceType.CPU
        if name.startswith(_OF_THE_PROFILER) or event.is_async() or event.start_thread_id() != event.end_thread_id():
            continue
        product = name in _PRODUCTS
        yield Event(
            name=name,
            begin=event.start_ns(),
            end=event.end_ns(),
            thread=event.start_thread_id(),
            on_device=on_device,
            is_range=event.is_user_annotation() and not on_device,
            is_call=not on_device and _RUNTIME_CALL.match(name) is not None,
            id=event.correlation_id(),
            by=event.linked_correlation_id(),
            shapes=_shapes(event.shapes()) if product else "",
            flops=event.flops() if product else 0.0,
        )


def _shapes(shapes: Iterable[Sequence[int]]) -> str:
    """Returns the shapes of the tensors among the inputs: "512x64  64x256"."""
    return "  ".join("x".join(map(str, shape)) for shape in shapes if shape)


def _span(event: Event, origin_ns: int) -> TimeSpan:
    return TimeSpan(event.name, (event.begin - origin_ns) / 1e9, (event.end - origin_ns) / 1e9)


def _launcher(kernel: Event) -> tuple[bool, int]:
    """Returns the key of what launched it: an operator, else a call of CUDA's."""
    return (False, kernel.by) if kernel.by else (True, kernel.id)


def operators(events: Sequence[Event], kernels: Iterable[Event]) -> list[Operator]:
    """Calls and own times by name, of products also by shapes. `events` are the CPU's, by their beginning and
    the longer first; the time of ranges that no operator takes is OUTSIDE.
    """
    on_device: dict[tuple[bool, int], int] = {}
    for kernel in kernels:
        by = _launcher(kernel)
        on_device[by] = on_device.get(by, 0) + kernel.end - kernel.begin
    sums: dict[tuple[str, str], list[float]] = {}
    for event, own in zip(events, _own_times(events), strict=True):
        found = sums.setdefault((OUTSIDE if event.is_range else event.name, event.shapes), [0.0, 0.0, 0.0, 0.0])
        device = on_device.get((event.is_call, event.id), 0)
        for place, value in enumerate((1, own / 1e9, device / 1e9, event.flops)):
            found[place] += value
    return [
        Operator(name=name, shapes=shapes, calls=calls, seconds=seconds, device_seconds=device, flops=flops)
        for (name, shapes), (calls, seconds, device, flops) in sums.items()
    ]


def _own_times(events: Sequence[Event]) -> list[int]:
    """Returns for each event the nanoseconds that no event inside it takes."""
    own = [event.end - event.begin for event in events]
    open_on: dict[int, list[int]] = {}  # by thread, from the outermost to the innermost
    for number, event in enumerate(events):
        outer = open_on.setdefault(event.thread, [])
        while outer and events[outer[-1]].end <= event.begin:
            outer.pop()
        if outer:
            own[outer[-1]] -= min(event.end, events[outer[-1]].end) - event.begin
        outer.append(number)
    return own


def launched(
    events: Iterable[Event], kernels: Iterable[Event], phases: Sequence[TimeSpan], origin_ns: int
) -> list[TimeSpan]:
    """The kernels, named by the phase in which they were launched; those that wait for other ranks are left out."""
    begins = {(event.is_call, event.id): (event.begin - origin_ns) / 1e9 for event in events if not event.on_device}
    counts, phase_begins = counted(phases), [phase.begin for phase in phases]
    found = []
    for kernel in kernels:
        place = bisect.bisect_right(phase_begins, begins.get(_launcher(kernel), 0.0)) - 1  # phases have no gaps
        if place >= 0 and _COMMUNICATION not in kernel.name.lower():
            span = _span(kernel, origin_ns)
            found.append(TimeSpan(counts[place].name, span.begin, span.end))
    return found


def write(recorder: profile, path: Path) -> None:
    """The trace as `path` (.json.gz), whole or not at all. Raises UserError or OSError."""
    raw, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        recorder.export_chrome_trace(str(raw))
        if not _is_whole(raw):  # torch does not say when a disk is full
            raise UserError(f"{path}: the trace could not be written; free some space")
        with naming(path), open(raw, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        os.replace(packed, path)
    finally:
        for left in (raw, packed, raw.with_name(f"{raw.name}.tmp")):
            left.unlink(missing_ok=True)


def _write_memory(path: Path) -> None:
    """Writes what is allocated on this rank's GPU, and its last allocations with their callers, for
    pytorch.org/memory_viz; whole or not at all. Raises UserError or OSError.
    """
    hidden = path.with_name(f".{path.name}")
    try:
        with naming(path):
            torch.cuda.memory._dump_snapshot(str(hidden))
            os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _is_whole(raw: Path) -> bool:
    """Whether the last field of a trace is there."""
    if not raw.exists():
        return False
    with open(raw, "rb") as file:
        file.seek(-min(4096, raw.stat().st_size), os.SEEK_END)
        return b'"traceName"' in file.read()


ASKED_STEPS = 5  # that follow a file PROFILE
ALLOCATIONS = 200_000  # the last of a rank's GPU that a snapshot of its memory lists
Pause = Callable[[], AbstractContextManager[None]]  # stops the clock that times steps


def window_note(train: TrainConfig, done: int, steps: int) -> str | None:
    """Says which steps of `train.profile` a run of `steps` that has `done` some does not come to; None where there are
    none.
    """
    asked = train.profiled
    left = range(max(asked.start, done + 1), min(asked.stop, steps + 1))
    if not asked or left == asked:
        return None
    why = f"ends with step {steps}" if asked.stop > steps + 1 else f"continues after step {done}"
    what = f"steps {left[0]} to {left[-1]} are" if left else "nothing is"
    return f"train.profile={train.profile}: the run {why}; {what} profiled"


class Request(Protocol):
    """A person's wish for a profile, the same on all ranks."""

    wants_profile: bool

    def profiled(self) -> None:
        """It is fulfilled."""


class Profile:
    """The recording of windows of steps, one after the other: that of `train.profile`, and those that are asked for.
    Every method is called by all ranks together.
    """

    def __init__(
        self,
        train: TrainConfig,
        steps: int,
        run_dir: RunDir,
        engine: Engine,
        watchdog: HangWatchdog,
        pause: Pause,
        request: Request,
    ) -> None:
        self.steps, self.request, self.is_answering = steps, request, False
        self.train, self.window, self.run_dir, self.folder = train, train.profiled, run_dir, run_dir.profile
        self.engine, self.groups, self.watchdog, self.pause = engine, engine.groups, watchdog, pause
        self._recording: _Recording | None = None

    def at(self, step: int) -> None:
        """Step `step` begins, and with it, perhaps, the recording; or the one before it was the last."""
        if step not in self.window:
            self.end()
        if self._recording is None and (step in self.window or self.request.wants_profile):
            with self.pause():
                self._begin(step)
        if self._recording is not None:
            self._recording.step(step)

    def _begin(self, step: int) -> None:
        if self.request.wants_profile:
            self._answer(step)
        try:
            self.groups.on_rank_0(self._clear)
        except UserError as problem:
            self._give_up(problem)
            self._fulfil()
            return
        origin_ns = self.groups.share(time.time_ns())
        if self._has_memory:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS, stacks="python")
        self._recording = _Recording(self.engine.device, origin_ns)
        self.watchdog.listener = self._recording.phase

    def _clear(self) -> None:
        """An older profile of this run may have been one of more ranks."""
        self.folder.mkdir(exist_ok=True)
        for kind in ("*.trace.json.gz", "summary.*", "*.memory.pickle"):
            for old in self.folder.glob(kind):
                old.unlink()

    def end(self) -> None:
        """Write what was recorded, if something is being recorded. A full disk costs the profile, not the run."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        configured, last = self.train.profiled, int(recording.steps[-1].removeprefix("step "))
        self.window = configured if configured and configured.start > last else range(0)  # once
        self.watchdog.listener = None
        self.watchdog.beat(SAVE)
        with self.pause():
            recording.stop()
            own = {**self._place(), **phases.share_of(recording.read())}
            shares = self.groups.gather(own)
            try:
                self.groups.on_rank_0(lambda: self._summarise(shares))
                path = self.folder / f"rank-{self.groups.rank}.trace.json.gz"
                self.groups.agree(lambda: write(recording.recorder, path))
                if self._has_memory:
                    self.groups.agree(lambda: _write_memory(self.folder / f"rank-{self.groups.rank}.memory.pickle"))
            except UserError as problem:
                self._give_up(problem)
            finally:
                if self._has_memory:
                    torch.cuda.memory._record_memory_history(enabled=None)
            self._fulfil()

    @property
    def _has_memory(self) -> bool:
        """Whether the recording has a snapshot of memory."""
        return self.is_answering and self.engine.device.type == "cuda"

    def _answer(self, step: int) -> None:
        """Record from `step` on."""
        self.is_answering, self.window = True, range(step, min(step + ASKED_STEPS, self.steps + 1))
        if self.groups.rank == 0:
            memory = "" if self._has_memory else "; a CPU has no snapshot of its memory"
            log.say(f"PROFILE: steps {step} to {self.window[-1]} are recorded in {self.folder}{memory}")

    def _fulfil(self) -> None:
        if self.is_answering:
            self.is_answering = False
            self.request.profiled()

    def _place(self) -> dict[str, Any]:
        groups = self.groups
        replica = groups.data_rank * groups.layout.tensor + groups.tensor_rank
        return {"rank": groups.rank, "stage": groups.pipeline_rank, "replica": replica, "host": os.uname().nodename}

    def _summarise(self, shares: list[dict[str, Any]]) -> None:
        layout = self.groups.layout
        sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
        summary = phases.combine(shares, sizes, self.engine.micro_batches)
        summary["device"] = torch.cuda.get_device_name() if self.engine.device.type == "cuda" else "cpu"
        summary["threads"] = torch.get_num_threads()
        first, last = summary["steps"][0], summary["steps"][-1]
        milliseconds = 1e3 * summary["step_seconds"]
        log.say(
            f"profile of steps {first} to {last}, {milliseconds:.1f} ms each, mean of ranks and steps: {self.folder}"
        )
        for line in phases.table(summary):
            log.say(line)
        write_json(self.folder / "summary.json", summary)
        self.run_dir.add_event("profiled", first=first, last=last, folder=str(self.folder))

    def _give_up(self, problem: UserError) -> None:
        self.window = range(0)
        if self.groups.rank == 0:
            log.say(f"the profile is not complete: {problem}; training continues")


class _Recording:
    """torch's profiler, and the ranges of steps and phases in it. `step` and `phase` end the one before."""

    def __init__(self, device: torch.device, origin_ns: int) -> None:
        self.device, self.origin_ns = device, origin_ns
        self.steps: list[str] = []
        self.phases: list[str] = []
        self.memory: list[int] = []
        self._step, self._phase = contextlib.ExitStack(), contextlib.ExitStack()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.recorder = profile(activities=activities, record_shapes=True, with_flops=True)
        self.recorder.start()

    def step(self, number: int) -> None:
        self._close()
        self.steps.append(f"step {number}")
        self._step.enter_context(record_function(self.steps[-1]))

    def phase(self, name: str) -> None:
        self._phase.close()
        self.phases.append(name)
        self.memory.append(held_bytes(self.device))
        self._phase.enter_context(record_function(name))

    def _close(self) -> None:
        self._phase.close()
        self._step.close()

    def stop(self) -> None:
        self._close()
        self.recorder.stop()

    def read(self) -> phases.Recording:
        return read(self.recorder, self.steps, self.phases, self.memory, self.origin_ns)
