"""How far a rank's GPU has come, which its host cannot tell: it queues kernels and runs ahead.

An event is recorded on the device just before the first collective of every step. A GPU that is held up before it does
not complete the event; the GPUs that wait in the collective for this one have completed theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

COLLECTIVES = ("reduction", "sending", "receiving")  # how the phases begin in which ranks meet on the device
PENDING = 64  # steps that a host runs ahead of its device at most


class DeviceEvent(Protocol):
    """The part of torch.cuda.Event that this file uses."""

    def record(self) -> None: ...

    def query(self) -> bool: ...


class DeviceProgress:
    """The main thread calls `begin`; the watching thread calls `enter` once, then `reached`."""

    def __init__(self, new_event: Callable[[], DeviceEvent], enter: Callable[[], None] = lambda: None) -> None:
        self._new_event, self.enter = new_event, enter
        self._pending: deque[tuple[int, DeviceEvent]] = deque(maxlen=PENDING)
        self._recorded = self._reached = 0

    def begin(self, phase: str, step: int) -> None:
        """A phase of `step` begins on the host; whatever comes before its first collective is queued by now."""
        if step > self._recorded and phase.startswith(COLLECTIVES):
            self._recorded = step
            event = self._new_event()
            event.record()
            self._pending.append((step, event))

    def reached(self) -> int:
        """Returns the last step whose first collective the device has come to; 0 for none."""
        while self._pending:
            step, event = self._pending[0]
            try:
                if not event.query():
                    break
            except RuntimeError:  # the device has failed, and completes nothing any more
                break
            self._reached = step
            self._pending.popleft()
        return self._reached


def of_this_rank() -> DeviceProgress | None:
    """Returns this rank's progress; None where ranks do not meet on GPUs."""
    if dist.get_backend() != "nccl":
        return None
    device = torch.cuda.current_device()  # a new thread begins on GPU 0, where every rank would take memory
    return DeviceProgress(torch.cuda.Event, lambda: torch.cuda.set_device(device))


def recorded_collectives() -> str | None:
    """Returns the last collectives of this process as JSON, from NCCL's flight recorder; None where there is none."""
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    text = dump()
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
