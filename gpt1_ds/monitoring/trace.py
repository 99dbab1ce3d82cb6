"""What torch's profiler recorded, as plain spans and sums: the trace and the summary come from the same events.

They are read as the profiler holds them. Its own `events()` takes a tenth of a millisecond of each, a minute for some
steps of a small model.
"""

from __future__ import annotations

import bisect
import gzip
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch._C._autograd import DeviceType
from torch.profiler import profile

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import naming
from gpt1_ds.tracking.phases import Operator, Recording, Span, counted

OUTSIDE = "(outside of operators: Python, waiting)"
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_COMMUNICATION = "nccl"  # in the name of a kernel that waits for other ranks
_OF_THE_PROFILER = "profiler::"  # begins the names of its own calls


class Event(NamedTuple):
    """An operator, a range or a kernel; nanoseconds. `by` is the id of the operator that launched a kernel, else 0."""

    name: str
    begin: int
    end: int
    thread: int = 0
    on_device: bool = False
    is_range: bool = False
    id: int = 0
    by: int = 0
    shapes: str = ""  # of a matrix product
    flops: float = 0.0


def read(
    recorder: profile, steps: Sequence[str], phases: Sequence[str], memory: list[int], origin_ns: int
) -> Recording:
    """What was recorded while these steps and phases were announced. Times are seconds since `origin_ns`."""
    events = sorted(_events(recorder), key=lambda event: (event.begin, -event.end))
    ours = {*steps, *phases}
    said = [_span(event, origin_ns) for event in events if event.is_range and event.name in ours]
    found_phases = [span for span in said if span.name not in steps]
    kernels = [event for event in events if event.on_device and event.name not in ours]  # torch repeats ranges there
    return Recording(
        steps=[Span(span.name.removeprefix("step "), span.begin, span.end) for span in said if span.name in steps],
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
            id=event.correlation_id(),
            by=event.linked_correlation_id(),
            shapes=_shapes(event.shapes()) if product else "",
            flops=event.flops() if product else 0.0,
        )


def _shapes(shapes: Iterable[Sequence[int]]) -> str:
    """Returns the shapes of the tensors among the inputs: "512x64  64x256"."""
    return "  ".join("x".join(map(str, shape)) for shape in shapes if shape)


def _span(event: Event, origin_ns: int) -> Span:
    return Span(event.name, (event.begin - origin_ns) / 1e9, (event.end - origin_ns) / 1e9)


def operators(events: Sequence[Event], kernels: Iterable[Event]) -> list[Operator]:
    """Calls and own times by name, of products also by shapes. `events` are the CPU's, by their beginning and
    the longer first; the time of ranges that no operator takes is OUTSIDE.
    """
    on_device: dict[int, int] = {}
    for kernel in kernels:
        on_device[kernel.by] = on_device.get(kernel.by, 0) + kernel.end - kernel.begin
    sums: dict[tuple[str, str], list[float]] = {}
    for event, own in zip(events, _own_times(events), strict=True):
        found = sums.setdefault((OUTSIDE if event.is_range else event.name, event.shapes), [0.0, 0.0, 0.0, 0.0])
        device = 0 if event.by else on_device.get(event.id, 0)
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


def launched(events: Iterable[Event], kernels: Iterable[Event], phases: Sequence[Span], origin_ns: int) -> list[Span]:
    """The kernels, named by the phase in which they were launched; those that wait for other ranks are left out."""
    begins = {event.id: (event.begin - origin_ns) / 1e9 for event in events if not event.on_device and not event.by}
    counts, phase_begins = counted(phases), [phase.begin for phase in phases]
    found = []
    for kernel in kernels:
        place = bisect.bisect_right(phase_begins, begins.get(kernel.by, 0.0)) - 1  # phases have no gaps
        if place >= 0 and _COMMUNICATION not in kernel.name.lower():
            span = _span(kernel, origin_ns)
            found.append(Span(counts[place].name, span.begin, span.end))
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


def _is_whole(raw: Path) -> bool:
    """Whether the last field of a trace is there."""
    if not raw.exists():
        return False
    with open(raw, "rb") as file:
        file.seek(-min(4096, raw.stat().st_size), os.SEEK_END)
        return b'"traceName"' in file.read()
