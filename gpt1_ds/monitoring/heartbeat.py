"""What ranks write down about their progress, and which of them holds up the others.

Every rank keeps one small file in the run folder. It is overwritten in place, so that a full disk does not make a rank
look dead.
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

HALF = 1024  # bytes that the main thread writes, and the watching thread after them
_WAITS = ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")  # code that waits for other ranks


@dataclass(frozen=True)
class Progress:
    """What the main thread says at every sign of progress: `count` grows, `limit` is in seconds until the next."""

    step: int
    phase: str
    count: int
    limit: float


@dataclass(frozen=True)
class Presence:
    """What the watching thread says now and then: `age` is the seconds since the last progress; `waits`: the main
    thread is in a collective; `reached`: the last step whose first collective its GPU has come to (None: no GPU).
    """

    rank: int
    host: str
    pid: int
    stage: int
    age: float
    where: str
    waits: bool
    reached: int | None = None


@dataclass(frozen=True)
class Heartbeat:
    progress: Progress
    presence: Presence
    written: float  # time of the last writing, by the file system's clock

    def __str__(self) -> str:
        who, what = self.presence, self.progress
        place = f", at {who.where}" if who.where else ""
        return f"rank {who.rank} ({who.host}, pid {who.pid}, stage {who.stage}): step {what.step}, {what.phase}{place}"


class HeartbeatFile:
    """A rank's file, kept open. What is written is at once visible to processes of the same host, also when this one
    is stopped the next moment; `flush` makes it visible on others.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._descriptor = os.open(_file_of(folder, rank), os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._descriptor, b" " * (2 * HALF), 0)

    def write(self, part: Progress | Presence) -> None:
        text = json.dumps(vars(part)).encode()[:HALF].ljust(HALF)
        os.pwrite(self._descriptor, text, 0 if isinstance(part, Progress) else HALF)

    def flush(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _file_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def read(folder: Path, rank: int) -> Heartbeat | None:
    """A rank's beat, or None for one that is not there or being written."""
    path = _file_of(folder, rank)
    try:
        data = path.read_bytes()
        progress = Progress(**json.loads(data[:HALF]))
        presence = Presence(**json.loads(data[HALF:]))
        written = path.stat().st_mtime
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    numbers = (progress.step, progress.count, progress.limit, presence.age)
    sound = presence.rank == rank and all(isinstance(number, int | float) for number in numbers)
    sound = sound and isinstance(presence.reached, int | None)
    return Heartbeat(progress, presence, written) if sound else None


def stalled_rank(beats: Iterable[Heartbeat], poll: float) -> Heartbeat:
    """Returns the one that holds up the others, of ranks that all make no progress.

    First a process that does not even write its beat any more, then one whose GPU has not come to the collective in
    which others wait, then one that is not waiting for others, then the one that stopped first.
    """
    found = list(beats)
    newest = max(beat.written for beat in found)

    def order(beat: Heartbeat) -> tuple[bool, int, bool, float]:
        silent = newest - beat.written > 4 * poll
        return not silent, beat.presence.reached or 0, beat.presence.waits, beat.written - beat.presence.age

    return min(found, key=order)


def late_device(beats: Iterable[Heartbeat], stalled: Heartbeat) -> str:
    """That the stalled rank's GPU is the late one, where others' GPUs have come farther; else nothing."""
    steps = [beat.presence.reached for beat in beats if beat.presence.reached is not None]
    reached = stalled.presence.reached
    if reached is None or reached == max(steps):
        return ""
    return f"; its GPU has not come to the first collective of step {max(steps)}, where others wait"


def place_of(thread: threading.Thread) -> tuple[str, bool]:
    """(innermost line of this package that a thread is in, whether it waits for other ranks)."""
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
