"""Which GPU holds up the others. Events are injected: here is none that a GPU completes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import GuardConfig
from gpt1_ds.monitoring import device_progress
from gpt1_ds.monitoring.device_progress import DeviceProgress
from gpt1_ds.monitoring.heartbeat import Heartbeat, Presence, Progress, late_device, read, stalled_rank
from gpt1_ds.monitoring.watchdog import HangWatchdog


class Queue:
    """A device that completes what is recorded on it up to `done` events."""

    def __init__(self) -> None:
        self.recorded, self.done, self.failed = 0, 0, False

    def event(self) -> Queue.Event:
        return Queue.Event(self)

    class Event:
        def __init__(self, queue: Queue) -> None:
            self.queue, self.place = queue, 0

        def record(self) -> None:
            self.queue.recorded += 1
            self.place = self.queue.recorded

        def query(self) -> bool:
            if self.queue.failed:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return 0 < self.place <= self.queue.done


def steps(progress: DeviceProgress, *numbers: int) -> None:
    for step in numbers:
        for phase in ("data", "forward of micro-batch 0", "reduction of gradients", "reduction of gradients", "update"):
            progress.begin(phase, step)


def test_the_first_collective_of_each_step_is_marked() -> None:
    queue = Queue()
    progress = DeviceProgress(queue.event)
    assert progress.reached() == 0
    steps(progress, 5, 6, 7)
    assert queue.recorded == 3, "one event a step"
    assert progress.reached() == 0
    queue.done = 2
    assert progress.reached() == 6
    queue.done = 3
    assert progress.reached() == 7
    for phase in ("receiving", "sending"):
        progress.begin(phase, 8)
    assert queue.recorded == 4, "of a pipeline, too"


def test_a_device_that_failed_completes_nothing() -> None:
    queue = Queue()
    progress = DeviceProgress(queue.event)
    steps(progress, 1)
    queue.done, queue.failed = 1, True
    assert progress.reached() == 0


def test_a_host_that_runs_far_ahead_forgets_the_oldest() -> None:
    queue = Queue()
    progress = DeviceProgress(queue.event)
    steps(progress, *range(1, 200))
    queue.done = 199
    assert progress.reached() == 199


def beat(rank: int, reached: int | None, age: float, written: float = 100.0) -> Heartbeat:
    """Of a host that waits in `.item()`: not in torch's collectives."""
    return Heartbeat(Progress(9, "update", 3, 60.0), Presence(rank, "h", 1, 0, age, "", False, reached), written)


def test_the_rank_whose_gpu_is_late_is_named() -> None:
    """Its host stopped last: without the event the wrong one would be named."""
    found = [beat(0, 9, 30.0), beat(1, 8, 29.0), beat(2, 9, 30.5)]
    stalled = stalled_rank(found, 1.0)
    assert stalled.presence.rank == 1
    assert "its GPU has not come to the first collective of step 9" in late_device(found, stalled)
    without = [beat(one.presence.rank, None, one.presence.age) for one in found]
    assert stalled_rank(without, 1.0).presence.rank == 2
    assert late_device(without, without[2]) == ""


def test_where_all_gpus_wait_in_the_collective_the_order_is_as_before() -> None:
    found = [beat(0, 9, 30.0), beat(1, 9, 31.0)]
    stalled = stalled_rank(found, 1.0)
    assert stalled.presence.rank == 1
    assert late_device(found, stalled) == ""


def test_a_silent_process_comes_first() -> None:
    found = [beat(0, 8, 30.0), beat(1, 9, 1.0, written=60.0)]
    assert stalled_rank(found, 1.0).presence.rank == 1


def test_the_watchdog_says_how_far_its_device_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "Event", queue.event)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    entered: list[int] = []  # by the watching thread, which would begin on GPU 0
    monkeypatch.setattr(torch.cuda, "set_device", entered.append)
    groups = SimpleNamespace(rank=0, world=1, pipeline_rank=0, on_rank_0=lambda action: action(), gather=lambda x: [x])
    with HangWatchdog(RunDir(tmp_path), groups, GuardConfig(step_timeout=1)) as watchdog:  # type: ignore[arg-type]
        for step in (1, 2):
            watchdog.beat("data", step)
            watchdog.beat("reduction of gradients")
        queue.done, deadline = 1, time.monotonic() + 10
        found = None
        while time.monotonic() < deadline and (found is None or found.presence.reached != 1):
            time.sleep(0.02)
            found = read(watchdog.folder, 0)
        assert found is not None
        assert found.presence.reached == 1, "not yet at the collective of step 2"
        monkeypatch.setattr(
            torch._C._distributed_c10d, "_dump_nccl_trace_json", lambda: b'{"entries": []}', raising=False
        )
        watchdog._keep_collectives()
    assert (watchdog.folder / "collectives-0.json").read_text() == '{"entries": []}'
    assert entered == [3]


def test_ranks_on_cpus_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    assert device_progress.of_this_rank() is None
