"""The heartbeat of a rank: one small file in the run folder, from which other ranks read whether it makes progress.

The file has two halves of 1024 bytes, each a JSON object padded with blanks:

    {"step": 12, "phase": "forward of micro-batch 0", "count": 340, "limit": 600.0}     by the main thread
    {"rank": 1, "host": "n1", "pid": 4711, "stage": 0, "age": 0.2, ...}                 by the watching thread

It is overwritten in place, so that a full disk does not make a rank look dead.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpt1_ds.common.files import naming

HALF = 1024  # bytes
_WAITS = ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")  # code that waits for other ranks


@dataclass(frozen=True)
class Progress:
    """What the main thread writes at every sign of progress."""

    step: int
    phase: str
    count: int  # of signs of progress so far
    limit: float  # seconds until the next


@dataclass(frozen=True)
class Presence:
    """What the watching thread writes at every poll."""

    rank: int
    host: str
    pid: int
    stage: int
    age: float  # seconds since the last progress
    where: str  # the line of this package that the main thread is in
    waits: bool  # the main thread is in a collective
    reached: int | None = None  # the last step whose first collective its GPU has come to; None without a GPU


@dataclass(frozen=True)
class Heartbeat:
    progress: Progress
    presence: Presence
    written: float  # time of the last writing, by the file system's clock

    def __str__(self) -> str:
        presence, progress = self.presence, self.progress
        place = f", at {presence.where}" if presence.where else ""
        process = f"rank {presence.rank} ({presence.host}, pid {presence.pid}, stage {presence.stage})"
        return f"{process}: step {progress.step}, {progress.phase}{place}"


class HeartbeatFile:
    """A rank's file, kept open. What is written is at once visible to processes of the same host, also when this one
    is stopped the next moment; `flush` makes it visible on others.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        path = _path(folder, rank)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with naming(path):
            os.pwrite(self._descriptor, b" " * (2 * HALF), 0)

    def write(self, part: Progress | Presence) -> None:
        text = json.dumps(vars(part)).encode()[:HALF].ljust(HALF)
        os.pwrite(self._descriptor, text, 0 if isinstance(part, Progress) else HALF)

    def flush(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def read(folder: Path, rank: int) -> Heartbeat | None:
    """Returns a rank's heartbeat, or None where the file is missing or is being written."""
    path = _path(folder, rank)
    try:
        data = path.read_bytes()
        progress = Progress(**json.loads(data[:HALF]))
        presence = Presence(**json.loads(data[HALF:]))
        written = path.stat().st_mtime
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    numbers = (progress.step, progress.count, progress.limit, presence.age)
    valid = presence.rank == rank and all(isinstance(number, int | float) for number in numbers)
    valid = valid and isinstance(presence.reached, int | None)
    return Heartbeat(progress, presence, written) if valid else None


def stalled_rank(heartbeats: Iterable[Heartbeat], poll: float) -> Heartbeat:
    """Returns the one that holds up the others, of ranks that all make no progress.

    First a process that does not even write its heartbeat any more, then one whose GPU has not come to the collective
    in which others wait, then one that is not waiting for others, then the one that stopped first.
    """
    heartbeats = list(heartbeats)
    newest = max(heartbeat.written for heartbeat in heartbeats)

    def order(heartbeat: Heartbeat) -> tuple[bool, int, bool, float]:
        presence = heartbeat.presence
        silent = newest - heartbeat.written > 4 * poll
        return not silent, presence.reached or 0, presence.waits, heartbeat.written - presence.age

    return min(heartbeats, key=order)


def late_device(heartbeats: Iterable[Heartbeat], stalled: Heartbeat) -> str:
    """Returns a clause saying that the stalled rank's GPU is late; "" where no other GPU has come farther."""
    steps = [heartbeat.presence.reached for heartbeat in heartbeats if heartbeat.presence.reached is not None]
    reached = stalled.presence.reached
    if reached is None or reached == max(steps):
        return ""
    return f"; its GPU has not come to the first collective of step {max(steps)}, where others wait"


def current_line(thread: threading.Thread) -> tuple[str, bool]:
    """Returns (innermost line of this package that a thread is in, whether it waits for other ranks)."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    waits = False
    while frame is not None:
        name = frame.f_code.co_filename
        waits = waits or any(part in name for part in _WAITS)
        if "gpt1_ds/" in name:
            inside = name[name.rindex("gpt1_ds/") :]
            return f"{inside}:{frame.f_lineno} in {frame.f_code.co_name}", waits
        frame = frame.f_back
    return "", waits
