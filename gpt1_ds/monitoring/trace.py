"""What torch's profiler has recorded: read as plain spans and sums, and written as a trace that a browser opens.

The events are read as the profiler holds them. Its own `events()` takes a tenth of a millisecond of each, a minute for
some steps of a small model.
"""

from __future__ import annotations

import bisect
import gzip
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch._C._autograd import DeviceType
from torch.profiler import profile

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import naming
from gpt1_ds.tracking.phases import Operator, Recording, TimeSpan, counted

OUTSIDE = "(outside of operators: Python, waiting)"
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_COMMUNICATION = "nccl"  # in the name of a kernel that waits for other ranks
_RUNTIME_CALL = re.compile("(cuda|cu|hip)[A-Z]")  # begins the names of calls of CUDA's and ROCm's
_OF_THE_PROFILER = "profiler::"  # begins the names of its own calls


class Event(NamedTuple):
    """An operator, a range, a call of CUDA's or a kernel."""

    name: str
    begin: int  # nanoseconds
    end: int
    thread: int = 0
    on_device: bool = False
    is_range: bool = False
    is_call: bool = False
    id: int = 0  # of a kernel: that of the call that launched it; calls and operators are numbered apart
    by: int = 0  # of a kernel: the id of the operator that launched it; 0 for the kernels of a CUDA graph
    shapes: str = ""  # of a matrix product
    flops: float = 0.0


def read(
    recorder: profile, steps: Sequence[str], phases: Sequence[str], memory: list[int], origin_ns: int
) -> Recording:
    """Returns what was recorded during these steps and phases. Times are seconds since `origin_ns`."""
    events = sorted(_events(recorder), key=lambda event: (event.begin, -event.end))
    range_names = {*steps, *phases}
    ranges = [_span(event, origin_ns) for event in events if event.is_range and event.name in range_names]
    step_spans = [span for span in ranges if span.name in steps]
    phase_spans = [span for span in ranges if span.name not in steps]
    on_host = [event for event in events if not event.on_device]
    on_device = [event for event in events if event.on_device and event.name not in range_names]  # torch repeats ranges
    return Recording(
        steps=[TimeSpan(span.name.removeprefix("step "), span.begin, span.end) for span in step_spans],
        phases=phase_spans,
        memory=memory,
        operators=operators(on_host, on_device),
        kernels=launched(events, on_device, phase_spans, origin_ns),
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
    """Returns (whether it is a call of CUDA's, id) of what launched a kernel: an operator, else such a call."""
    return (False, kernel.by) if kernel.by else (True, kernel.id)


def operators(events: Sequence[Event], kernels: Iterable[Event]) -> list[Operator]:
    """Returns calls and own times by name, of products also by shapes. `events` are the CPU's, in the order of their
    beginning, of those that begin together the longer first. Time of ranges that no operator takes is OUTSIDE.
    """
    device_times: dict[tuple[bool, int], int] = {}  # nanoseconds of kernels, by what launched them
    for kernel in kernels:
        launcher = _launcher(kernel)
        device_times[launcher] = device_times.get(launcher, 0) + kernel.end - kernel.begin
    sums: dict[tuple[str, str], Operator] = {}
    for event, own_time in zip(events, _own_times(events), strict=True):
        name = OUTSIDE if event.is_range else event.name
        before = sums.get((name, event.shapes), Operator(name=name, shapes=event.shapes, calls=0.0, seconds=0.0))
        sums[name, event.shapes] = replace(
            before,
            calls=before.calls + 1,
            seconds=before.seconds + own_time / 1e9,
            device_seconds=before.device_seconds + device_times.get((event.is_call, event.id), 0) / 1e9,
            flops=before.flops + event.flops,
        )
    return list(sums.values())


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
    """Returns the kernels, named by the phase in which they were launched, without those that wait for other ranks."""
    launches = {(event.is_call, event.id): (event.begin - origin_ns) / 1e9 for event in events if not event.on_device}
    phase_names = [phase.name for phase in counted(phases)]
    phase_begins = [phase.begin for phase in phases]
    spans = []
    for kernel in kernels:
        phase = bisect.bisect_right(phase_begins, launches.get(_launcher(kernel), 0.0)) - 1  # phases have no gaps
        if phase >= 0 and _COMMUNICATION not in kernel.name.lower():
            span = _span(kernel, origin_ns)
            spans.append(TimeSpan(phase_names[phase], span.begin, span.end))
    return spans


def write(recorder: profile, path: Path) -> None:
    """Writes the trace as `path` (.json.gz), whole or not at all. Raises UserError or OSError."""
    raw, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        recorder.export_chrome_trace(str(raw))
        if not _is_whole(raw):  # torch does not say when a disk is full
            raise UserError(f"{path}: the trace could not be written; free some space")
        with naming(path), open(raw, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        os.replace(packed, path)
    finally:
        for temporary in (raw, packed, raw.with_name(f"{raw.name}.tmp")):
            temporary.unlink(missing_ok=True)


def _is_whole(raw: Path) -> bool:
    """Returns whether the last field of a trace is there."""
    if not raw.exists():
        return False
    with open(raw, "rb") as file:
        file.seek(-min(4096, raw.stat().st_size), os.SEEK_END)
        return b'"traceName"' in file.read()
