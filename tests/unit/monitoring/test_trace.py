"""What torch's profiler records is read back, and written whole or not at all."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from gpt1_ds.common.errors import UserError
from gpt1_ds.monitoring import trace
from gpt1_ds.monitoring.profiler import ProfiledWindow
from gpt1_ds.monitoring.trace import Event
from gpt1_ds.tracking.phases import Recording, TimeSpan


def record() -> tuple[profile, Recording]:
    """Two steps of two phases each: a product, then a pause."""
    recording = ProfiledWindow(torch.device("cpu"), time.time_ns())
    for number in (4, 5):
        recording.step(number)
        recording.phase("forward of micro-batch 0")
        torch.ones(32, 64) @ torch.ones(64, 16)
        recording.phase("data")
        time.sleep(0.01)
    recording.stop()
    return recording.recorder, recording.read()


@pytest.fixture
def recorded() -> tuple[profile, Recording]:
    return record()


def test_spans_and_operators(recorded: tuple[profile, Recording]) -> None:
    _, found = recorded
    assert [step.name for step in found.steps] == ["4", "5"]
    assert [span.name for span in found.phases] == ["forward of micro-batch 0", "data"] * 2
    assert all(0.01 <= span.seconds < 1 for span in found.phases[1::2])
    assert all(0 < span.begin < 60 for span in found.steps), "since the origin"
    for step, phases in zip(found.steps, (found.phases[:2], found.phases[2:]), strict=True):
        assert step.begin <= phases[0].begin < phases[0].end <= phases[1].begin < phases[1].end <= step.end
    assert len(found.memory) == 4
    assert all(held > 10e6 for held in found.memory)
    (mm,) = [operator for operator in found.operators if operator.name == "aten::mm"]
    assert (mm.calls, mm.shapes, mm.flops) == (2, "32x64  64x16", 2 * 2 * 32 * 64 * 16)
    outside = next(operator for operator in found.operators if operator.name == trace.OUTSIDE)
    assert outside.seconds >= 0.02, "the pauses"
    total = sum(operator.seconds for operator in found.operators)
    assert total == pytest.approx(sum(step.seconds for step in found.steps), rel=1e-3), "every moment counts once"


def test_a_trace_that_a_browser_opens(recorded: tuple[profile, Recording], tmp_path: Path) -> None:
    path = tmp_path / "rank-0.trace.json.gz"
    trace.write(recorded[0], path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("forward of micro-batch 0") == 2
    assert {"step 4", "step 5", "aten::mm"} <= set(names)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("missing", [2, 1, 0])  # pages of the disk; 0: the trace fits, but not its gzip beside it
def test_no_space_for_a_trace(
    recorded: tuple[profile, Recording],
    missing: int,
    tmp_path: Path,
    small_disk,  # type: ignore[no-untyped-def]
) -> None:
    record()[0].export_chrome_trace(str(tmp_path / "whole.json"))
    pages = -(-(tmp_path / "whole.json").stat().st_size // 4096)
    disk = small_disk(f"{4 * (pages - missing)}k")
    with pytest.raises((UserError, OSError), match=r"[Ss]pace"):
        trace.write(recorded[0], disk / "rank-0.trace.json.gz")
    assert not list(disk.iterdir())


def kernel(name: str, begin: int, end: int, by: int) -> Event:
    return Event(name, begin, end, on_device=True, id=90, by=by)


def test_kernels_count_for_the_phase_that_launched_them() -> None:
    """They run later than they were launched, here in the phase after it."""
    phases = [TimeSpan("forward of micro-batch 0", 0.0, 1.0), TimeSpan("backward of micro-batch 0", 1.0, 4.0)]
    second = 10**9
    events = [
        *(Event("aten::mm", second // 2, second // 2, id=1), Event("aten::mul", 3 * second // 2, 2 * second, id=2)),
        Event("cudaLaunchKernel", 2 * second, 2 * second, is_call=True, id=2, by=1),
    ]
    kernels = [
        *(kernel("gemm", second, 2 * second, by=1), kernel("mul", 2 * second, 3 * second, by=2)),
        kernel("ncclDevKernel_SendRecv", second, 2 * second, by=1),
    ]
    assert trace.launched(events, kernels, phases, 0) == [
        TimeSpan("forward", 1.0, 2.0),
        TimeSpan("backward", 2.0, 3.0),
    ]
    found = {one.name: one.device_seconds for one in trace.operators(events, kernels)}
    assert found == {"aten::mm": 2.0, "aten::mul": 1.0, "cudaLaunchKernel": 0.0}


def test_kernels_of_a_graph_count_for_the_call_that_launched_them() -> None:
    """No operator did; what has no id is not meant, nor is an operator that has the number of the call."""
    phases = [TimeSpan("forward and backward of micro-batch 0", 0.0, 1.0), TimeSpan("optimizer", 1.0, 4.0)]
    second = 10**9
    events = [
        *(Event("overhead", 0, 0), Event("cudaGraphLaunch", second // 4, second // 2, is_call=True, id=7)),
        Event("aten::add", second, second, id=7),
        Event("cudaLaunchKernel", second, second, is_call=True, id=8, by=7),
    ]
    kernels = [
        *(Event(name, second, 2 * second, on_device=True, id=7) for name in ("gemm", "softmax")),
        Event("add", 2 * second, 3 * second, on_device=True, id=8, by=7),
    ]
    assert [span.name for span in trace.launched(events, kernels, phases, 0)] == ["forward", "forward", "optimizer"]
    found = {one.name: one.device_seconds for one in trace.operators(events, kernels)}
    assert found == {"overhead": 0.0, "cudaGraphLaunch": 2.0, "aten::add": 1.0, "cudaLaunchKernel": 0.0}


def test_calls_of_cuda_are_told_from_operators() -> None:
    calls = ("cudaGraphLaunch", "cudaLaunchKernelExC_v11060", "cuLaunchKernelEx", "hipLaunchKernel")
    operators = ("aten::cumsum", "cumsum", "cuda_kernel", "CompiledFunction", "hippo::Scan")
    assert [name for name in (*calls, *operators) if trace._RUNTIME_CALL.match(name)] == [*calls]


def test_own_time_is_what_nothing_inside_takes() -> None:
    events = [
        *(Event("range", 0, 100, is_range=True), Event("outer", 10, 60), Event("inner", 20, 40)),
        *(Event("inner", 40, 50), Event("elsewhere", 45, 95, thread=1), Event("late", 70, 80)),
    ]
    found = {one.name: (one.calls, round(one.seconds * 1e9)) for one in trace.operators(events, [])}
    own = {trace.OUTSIDE: (1, 40), "outer": (1, 20), "inner": (2, 30), "elsewhere": (1, 50), "late": (1, 10)}
    assert found == own
