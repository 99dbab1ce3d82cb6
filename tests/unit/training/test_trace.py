"""What torch's profiler records is read back, and written whole or not at all."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import profile

from gpt1_ds.common.errors import UserError
from gpt1_ds.tracking.phases import Recording, Span
from gpt1_ds.training import profile as room
from gpt1_ds.training import trace


def record() -> tuple[profile, Recording]:
    """Two steps of two phases each: a product, then a pause."""
    recording = room._Recording(torch.device("cpu"), time.time_ns())
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


def event(name: str, begin: float, end: float, number: int, by: int = 0) -> SimpleNamespace:
    """Of a processor, or with `by` of the GPU that it was launched on; microseconds."""
    return SimpleNamespace(
        name=name,
        id=number,
        linked_correlation_id=by,
        time_range=SimpleNamespace(start=begin, end=end),
        device_type=DeviceType.CUDA if by else DeviceType.CPU,
        is_user_annotation=False,
    )


def test_kernels_count_for_the_phase_that_launched_them() -> None:
    """They run later than they were launched, here in the phase behind."""
    phases = [Span("forward of micro-batch 0", 5.0, 6.0), Span("backward of micro-batch 0", 6.0, 9.0)]
    events = [
        *(event("aten::mm", 0.5e6, 0.6e6, 1), event("aten::mul", 1.5e6, 1.6e6, 2)),
        *(event("gemm", 1.2e6, 1.4e6, 8, by=1), event("mul", 2e6, 3e6, 8, by=2)),
        *(event("ncclDevKernel_SendRecv", 1e6, 2e6, 8, by=1), event("forward of micro-batch 0", 1e6, 2e6, 8, by=1)),
    ]
    found = trace._kernels(events, phases, {"forward of micro-batch 0"}, zero=5.0)
    assert found == [Span("forward", 6.2, 6.4), Span("backward", 7.0, 8.0)]
