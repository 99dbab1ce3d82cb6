"""What torch's profiler recorded, as plain spans and sums: the trace and the summary come from the same events."""

from __future__ import annotations

import bisect
import gzip
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import profile

from gpt1_ds.common.errors import UserError
from gpt1_ds.tracking.phases import Operator, Recording, Span, counted

OUTSIDE = "(outside of operators: Python, waiting)"
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul")
_COMMUNICATION = "nccl"  # in the name of a kernel that waits for other ranks


def read(
    recorder: profile, steps: Sequence[str], phases: Sequence[str], memory: list[int], origin_ns: int
) -> Recording:
    """What was recorded while these steps and phases were announced. Times are seconds since `origin_ns`."""
    assert recorder.profiler is not None, "it has recorded"
    results = recorder.profiler.kineto_results
    assert results is not None, "it has stopped"
    zero = (results.trace_start_ns() - origin_ns) / 1e9
    events = list(recorder.events() or ())
    ours = {*steps, *phases}
    said = [_span(event, zero) for event in events if event.name in ours and _is_annotation(event)]
    found_phases = [span for span in said if span.name not in steps]
    return Recording(
        steps=[Span(span.name.removeprefix("step "), span.begin, span.end) for span in said if span.name in steps],
        phases=found_phases,
        memory=memory,
        operators=_operators(events),
        kernels=_kernels(events, found_phases, ours, zero),
    )


def _span(event: Any, zero: float) -> Span:
    return Span(event.name, zero + event.time_range.start / 1e6, zero + event.time_range.end / 1e6)


def _is_annotation(event: Any) -> bool:
    return bool(event.is_user_annotation) and event.device_type == DeviceType.CPU


def _operators(events: Iterable[Any]) -> list[Operator]:
    sums: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.device_type != DeviceType.CPU or event.is_async:
            continue
        product = event.name in _PRODUCTS
        shapes = _shapes(event.input_shapes) if product else ""
        name = OUTSIDE if event.is_user_annotation else event.name
        found = sums.setdefault((name, shapes), [0.0, 0.0, 0.0, 0.0])
        device = sum(kernel.duration for kernel in event.kernels) / 1e6
        for place, value in enumerate((1, event.self_cpu_time_total / 1e6, device, product * (event.flops or 0))):
            found[place] += value
    return [
        Operator(name=name, shapes=shapes, calls=calls, seconds=seconds, device_seconds=device, flops=flops)
        for (name, shapes), (calls, seconds, device, flops) in sums.items()
    ]


def _shapes(shapes: Iterable[Any] | None) -> str:
    """Of the tensors among the inputs: "512x64 64x256"."""
    return "  ".join("x".join(map(str, shape)) for shape in shapes or () if shape)


def _kernels(events: Sequence[Any], phases: Sequence[Span], ours: set[str], zero: float) -> list[Span]:
    """A device's kernels, named by the phase in which they were launched; those that wait for other ranks are left
    out, and so are `ours`, the ranges that torch repeats on the device.
    """
    launched, running = {}, []
    for event in events:
        by = getattr(event, "linked_correlation_id", 0)  # the operator that launched this; of an operator 0
        if event.device_type == DeviceType.CPU and not by:
            launched[event.id] = zero + event.time_range.start / 1e6
        elif event.device_type == DeviceType.CUDA and not event.is_user_annotation and event.name not in ours:
            running.append((event, by))
    counts, begins = counted(phases), [phase.begin for phase in phases]
    found = []
    for event, by in running:
        place = bisect.bisect_right(begins, launched.get(by, 0.0)) - 1  # phases have no gaps
        if place >= 0 and _COMMUNICATION not in event.name.lower():
            span = _span(event, zero)
            found.append(Span(counts[place].name, span.begin, span.end))
    return found


def write(recorder: profile, path: Path) -> None:
    """The trace as `path` (.json.gz), whole or not at all. Raises UserError or OSError."""
    raw, packed = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        recorder.export_chrome_trace(str(raw))
        if not _is_whole(raw):  # torch does not say when a disk is full
            raise UserError(f"{path}: the trace could not be written; free some space")
        with open(raw, "rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
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
