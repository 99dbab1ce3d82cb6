"""No hang survives: every rank writes down its progress, also its GPU's, whose host cannot tell how far it has come; it
looks after the next rank, and ends the run when that one stops.

Every rank keeps one small file in the run folder. It is overwritten in place, so that a full disk does not make a rank
look dead.

An event is recorded on the device just before the first collective of every step. A GPU that is held up before it does
not complete the event; the GPUs that wait in the collective for this one have completed theirs.

The rank that notices names the one that holds up the others, its phase and its stack, and ends the run with a failure;
the others see that and end too. A thread does all this, so it also works while the main thread waits in a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Protocol

import torch
import torch.distributed as dist

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_FAILURE, StoppedRankError
from gpt1_ds.common.files import naming
from gpt1_ds.common.lock import identity, is_alive_here
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import GuardConfig
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher import launch

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
        with naming(_file_of(folder, rank)):
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


COLLECTIVES = ("reduction", "sending", "receiving")  # first words of the phases in which ranks meet on the device
MOST = 64  # steps that a host runs ahead of its device


class DeviceEvent(Protocol):
    """The part of torch.cuda.Event that this file uses."""

    def record(self) -> None: ...

    def query(self) -> bool: ...


class DeviceProgress:
    """`begin` is for the main thread, `reached` for the watching one, which calls `enter` before."""

    def __init__(self, new_event: Callable[[], DeviceEvent], enter: Callable[[], None] = lambda: None) -> None:
        self._new_event, self.enter = new_event, enter
        self._pending: deque[tuple[int, DeviceEvent]] = deque(maxlen=MOST)
        self._recorded = self._reached = 0

    def begin(self, phase: str, step: int) -> None:
        """A phase of `step` begins on the host; whatever comes before its first collective is queued by now."""
        if step > self._recorded and phase.startswith(COLLECTIVES):
            self._recorded = step
            event = self._new_event()
            event.record()
            self._pending.append((step, event))

    def reached(self) -> int:
        """The last step whose first collective the device has come to; 0 for none."""
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
    """NCCL's flight recorder: the last collectives of this process as JSON. None where there is none."""
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    text = dump()
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


DUMP = signal.SIGRTMIN + 5  # asks a rank for its stacks; nobody else uses it
PATIENCE = 2.0  # seconds that a stack may take to be written
SAVE, SET_UP, ENDED = "save", "set-up", "ended"


class HangWatchdog:
    """This rank's beats; a context manager. `beat` is called by the main thread and costs a microsecond."""

    def __init__(self, run_dir: RunDir, groups: ProcessGroups, guard: GuardConfig) -> None:
        self.run_dir, self.groups, self.guard = run_dir, groups, guard
        self.folder = run_dir.path / "beats"
        self.poll = min(5.0, max(0.05, min(guard.step_timeout, guard.init_timeout, guard.save_timeout) / 20))
        self.step, self.phase, self.count = 0, SET_UP, 0
        self._began: int | None = None  # the first step of this segment: libraries compile in it
        self.device = of_this_rank()
        self._beaten = time.monotonic()
        self._main = threading.main_thread()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="watch", daemon=True)
        self._seen: tuple[int, float] = (-1, self._beaten)  # count of the next rank, and when it was first seen
        self.listener: Callable[[str], None] | None = None  # is called with every phase that begins

    def __enter__(self) -> HangWatchdog:
        self._main = threading.current_thread()
        self.folder = self.groups.on_rank_0(self._cleared)
        self._ranks = self.groups.gather(identity())  # each says its own: who may write a beat names no other process
        self._stacks = open(self._stacks_of(self.groups.rank), "wb", buffering=0)
        self._file = HeartbeatFile(self.folder, self.groups.rank)
        faulthandler.register(DUMP, self._stacks, all_threads=True)
        self._say_present()
        self.beat(SET_UP)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        if error is None:  # else the others are still waiting for this rank
            self.beat(ENDED)
        faulthandler.unregister(DUMP)
        self._stacks.close()
        self._file.close()

    def beat(self, phase: str, step: int | None = None) -> None:
        """A sign of progress: this rank is in `phase` (of `step`, when that has changed)."""
        if step is not None:
            self.step = step
            self._began = step if self._began is None else self._began
        self.phase = phase
        if self.device is not None:
            self.device.begin(phase, self.step)
        if self.listener is not None:
            self.listener(phase)
        self.count += 1
        self._beaten = time.monotonic()
        with contextlib.suppress(OSError):
            self._file.write(Progress(self.step, phase, self.count, self.limit))

    @property
    def limit(self) -> float:
        """Seconds without progress that the present phase may take."""
        if self.phase == ENDED:
            return float("inf")
        if self.phase in (SAVE, SET_UP):
            return self.guard.save_timeout if self.phase == SAVE else self.guard.init_timeout
        return (
            self.guard.step_timeout if self._began is not None and self.step > self._began else self.guard.init_timeout
        )

    def _cleared(self) -> Path:
        """An empty folder: of that of an earlier segment, files may be busy (NFS) or another person's."""
        for old in self.run_dir.path.glob(f"{self.folder.name}*"):
            shutil.rmtree(old, ignore_errors=True)
        if self.folder.exists():
            return Path(tempfile.mkdtemp(prefix=f"{self.folder.name}-", dir=self.run_dir.path))
        self.folder.mkdir()
        return self.folder

    def _stacks_of(self, rank: int) -> Path:
        return self.folder / f"stacks-{rank}.txt"

    @property
    def _alarm(self) -> Path:
        return self.folder / "alarm"

    def _say_present(self) -> None:
        age, place = time.monotonic() - self._beaten, (self.groups.rank, socket.gethostname(), os.getpid())
        reached = None if self.device is None else self.device.reached()
        self._file.write(Presence(*place, self.groups.pipeline_rank, age, *place_of(self._main), reached))
        self._file.flush()

    def _look_after(self) -> None:
        """The thread: write, look whether the alarm was raised, look at the next rank."""
        last = time.monotonic()
        if self.device is not None:
            self.device.enter()
        while not self._end.wait(self.poll):
            now = time.monotonic()
            if now - last > 4 * self.poll + 1:  # this process was stopped (Ctrl-Z, a sleeping laptop): start over
                self._beaten = now
                self._seen = (-1, now)
            last = now
            try:
                self._say_present()
                if self._alarm.exists():
                    self._leave()
                stuck = self._is_next_stuck(now)
            except OSError:
                self._seen = (-1, now)  # who cannot write or read cannot judge
                continue
            if stuck is not None:
                self._raise_alarm(stuck)

    def _is_next_stuck(self, now: float) -> float | None:
        """Seconds for which the next rank has made no progress when they are too many, else None."""
        found = read(self.folder, (self.groups.rank + 1) % self.groups.world)
        if found is None:
            return None
        count, since = self._seen
        if found.progress.count != count:
            self._seen = (found.progress.count, now - min(found.presence.age, self.poll))
            return None
        return now - since if now - since > found.progress.limit - 2 * self.poll else None

    def _raise_alarm(self, seconds: float) -> None:
        """End the run, naming the rank that holds it up; the first rank that comes here speaks for all."""
        try:
            os.close(os.open(self._alarm, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except OSError:
            pass  # no space for the marker: the launcher ends the others
        # should the file system hang, too: end all the same
        faulthandler.dump_traceback_later(5 * PATIENCE, exit=True, file=self._stacks)
        found = [beat for rank in range(self.groups.world) if (beat := read(self.folder, rank)) is not None]
        stalled = stalled_rank(found, self.poll)
        for rank in range(self.groups.world):
            self._signal(rank, DUMP)  # a stopped one writes its stacks when it is woken
        stack = self._stack_of(stalled.presence)
        self._keep_collectives()
        late = late_device(found, stalled)
        text = f"no progress for {seconds:.0f} s; {stalled}{late}; stacks of all ranks: {self.folder}/stacks-*.txt"
        who, what = stalled.presence, stalled.progress
        self.run_dir.add_event("stuck", rank=who.rank, step=what.step, phase=what.phase, stack=stack)
        log.LOGGER.debug(text)
        if not launch.tell(StoppedRankError(text)):
            log.alarm(text)
        os._exit(EXIT_FAILURE)

    def _stack_of(self, stalled: Presence) -> list[str]:
        """The stalled rank's stacks, most recent call first. A stopped process is woken to write them, then ended."""
        if stalled.rank == self.groups.rank:
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._signal(stalled.rank, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        text = ""
        while time.monotonic() < deadline and not text:
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                text = self._stacks_of(stalled.rank).read_text(errors="replace", encoding="utf-8")
        self._signal(stalled.rank, signal.SIGKILL)
        return text.splitlines()

    def _signal(self, rank: int, number: int) -> None:
        """Send a signal to another rank, if it is a process of this machine and still the one that joined the run."""
        one = self._ranks[rank]
        if rank != self.groups.rank and is_alive_here(one):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one["pid"], number)

    def _leave(self) -> None:
        """Another rank has raised the alarm: leave the stacks, give it time to speak, and end."""
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._keep_collectives()
        time.sleep(2 * PATIENCE)
        os._exit(EXIT_FAILURE)

    def _keep_collectives(self) -> None:
        """Beside the stacks, what NCCL's flight recorder saw last: tools of PyTorch compare the ranks' files."""
        if self.device is not None and (text := recorded_collectives()) is not None:
            with contextlib.suppress(OSError):
                (self.folder / f"collectives-{self.groups.rank}.json").write_text(text, encoding="utf-8")
