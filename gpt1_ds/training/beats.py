"""What ranks write down about their progress, and which of them holds up the others.

Every rank keeps one small file in the run folder. It is overwritten in place, so that a full disk does not make a rank
look dead.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

SIZE = 1024  # bytes of a beat's file
_WAITS = ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")  # code that waits for other ranks


@dataclass(frozen=True)
class Beat:
    """Where a rank is. `count` grows with every sign of progress, `age` is the seconds since the last one, `limit` the
    seconds that this phase may take; `waits`: its main thread is in a collective.
    """

    rank: int
    host: str
    pid: int
    stage: int
    step: int
    phase: str
    count: int
    age: float
    limit: float
    where: str = ""
    waits: bool = False

    def __str__(self) -> str:
        place = f", at {self.where}" if self.where else ""
        return (
            f"rank {self.rank} ({self.host}, pid {self.pid}, stage {self.stage}): step {self.step}, {self.phase}{place}"
        )


def file_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def write(folder: Path, beat: Beat) -> None:
    """Overwrite the rank's file; closing it makes the bytes visible on network file systems."""
    path = file_of(folder, beat.rank)
    text = json.dumps(asdict(beat)).encode()[: SIZE - 1]
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(text.ljust(SIZE - 1) + b"\n")


def read(folder: Path, rank: int) -> tuple[Beat, float] | None:
    """(beat, time of writing by the file system's clock), or None for one that is not there or being written."""
    path = file_of(folder, rank)
    try:
        return Beat(**json.loads(path.read_bytes())), path.stat().st_mtime
    except (OSError, ValueError, TypeError):
        return None


def culprit(found: Iterable[tuple[Beat, float]], poll: float) -> Beat:
    """Of ranks that all make no progress, the one that holds up the others.

    First a process that does not even write its beat any more, then one that is not waiting for others, then the one
    that stopped first.
    """
    beats = list(found)
    newest = max(written for _, written in beats)

    def order(item: tuple[Beat, float]) -> tuple[bool, bool, float]:
        beat, written = item
        silent = newest - written > 4 * poll
        return not silent, beat.waits, written - beat.age

    return min(beats, key=order)[0]


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
