"""No hang survives: each rank writes a heartbeat, watches the next rank's, and ends the run when that one stops.

The rank that notices names the one that holds up the others, its phase and its stack, and ends the run with a failure;
the others see that and end too. A thread does all this, so it also works while the main thread waits in a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_FAILURE, StoppedRankError
from gpt1_ds.common.lock import identity, is_alive_here
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import GuardConfig
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher import launch
from gpt1_ds.monitoring import device_progress
from gpt1_ds.monitoring.heartbeat import (
    HeartbeatFile,
    Presence,
    Progress,
    current_line,
    late_device,
    read,
    stalled_rank,
)

DUMP = signal.SIGRTMIN + 5  # asks a rank for its stacks; nobody else uses it
STACK_TIMEOUT = 2.0  # seconds that a stack may take to be written
SAVE, SET_UP, ENDED = "save", "set-up", "ended"


class HangWatchdog:
    """Writes this rank's heartbeat and watches the next rank's; a context manager. The main thread calls `beat`, which
    costs a microsecond.
    """

    def __init__(self, run_dir: RunDir, groups: ProcessGroups, guard: GuardConfig) -> None:
        self.run_dir, self.groups, self.guard = run_dir, groups, guard
        self.folder = run_dir.path / "beats"
        self.poll = min(5.0, max(0.05, min(guard.step_timeout, guard.init_timeout, guard.save_timeout) / 20))
        self.step, self.phase, self.count = 0, SET_UP, 0
        self._first_step: int | None = None  # of this segment: libraries compile in it
        self.device = device_progress.of_this_rank()
        self._last_progress = time.monotonic()
        self._main = threading.main_thread()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._seen: tuple[int, float] = (-1, self._last_progress)  # the next rank's count, and when it was first seen
        self.listener: Callable[[str], None] | None = None  # is called with every phase that begins

    def __enter__(self) -> HangWatchdog:
        self._main = threading.current_thread()
        self.folder = self.groups.on_rank_0(self._empty_folder)
        self._ranks = self.groups.gather(
            identity()
        )  # each gives its own: who may write into a heartbeat names no other process
        self._stacks = open(self._stacks_of(self.groups.rank), "wb", buffering=0)
        self._file = HeartbeatFile(self.folder, self.groups.rank)
        faulthandler.register(DUMP, self._stacks, all_threads=True)
        self._write_presence()
        self.beat(SET_UP)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closing.set()
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
            self._first_step = step if self._first_step is None else self._first_step
        self.phase = phase
        if self.device is not None:
            self.device.begin(phase, self.step)
        if self.listener is not None:
            self.listener(phase)
        self.count += 1
        self._last_progress = time.monotonic()
        with contextlib.suppress(OSError):
            self._file.write(Progress(self.step, phase, self.count, self.limit))

    @property
    def limit(self) -> float:
        """Returns how many seconds without progress the present phase may take."""
        if self.phase == ENDED:
            return float("inf")
        if self.phase == SAVE:
            return self.guard.save_timeout
        compiling = self._first_step is None or self.step <= self._first_step
        return self.guard.init_timeout if self.phase == SET_UP or compiling else self.guard.step_timeout

    def _empty_folder(self) -> Path:
        """Returns an empty folder. Files of an earlier segment's may be busy (NFS) or belong to another person."""
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

    def _write_presence(self) -> None:
        where, waits = current_line(self._main)
        presence = Presence(
            rank=self.groups.rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            stage=self.groups.pipeline_rank,
            age=time.monotonic() - self._last_progress,
            where=where,
            waits=waits,
            reached=None if self.device is None else self.device.reached(),
        )
        self._file.write(presence)
        self._file.flush()

    def _watch(self) -> None:
        """The watching thread: writes that it is there, looks whether an alarm was raised, and at the next rank."""
        last = time.monotonic()
        if self.device is not None:
            self.device.enter()
        while not self._closing.wait(self.poll):
            now = time.monotonic()
            if now - last > 4 * self.poll + 1:  # this process was stopped (Ctrl-Z, a sleeping laptop): start over
                self._last_progress = now
                self._seen = (-1, now)
            last = now
            try:
                self._write_presence()
                if self._alarm.exists():
                    self._end_with_others()
                seconds = self._next_stalled_for(now)
            except OSError:
                self._seen = (-1, now)  # who cannot write or read cannot judge
                continue
            if seconds is not None:
                self._raise_alarm(seconds)

    def _next_stalled_for(self, now: float) -> float | None:
        """Returns for how many seconds the next rank has made no progress, where they are too many; else None."""
        heartbeat = read(self.folder, (self.groups.rank + 1) % self.groups.world)
        if heartbeat is None:
            return None
        count, since = self._seen
        if heartbeat.progress.count != count:
            self._seen = (heartbeat.progress.count, now - min(heartbeat.presence.age, self.poll))
            return None
        return now - since if now - since > heartbeat.progress.limit - 2 * self.poll else None

    def _raise_alarm(self, seconds: float) -> None:
        """Ends the run, naming the rank that holds it up; the first rank that comes here reports for all."""
        try:
            os.close(os.open(self._alarm, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except OSError:
            pass  # no space for the marker: the launcher ends the others
        # should the file system hang, too: end all the same
        faulthandler.dump_traceback_later(5 * STACK_TIMEOUT, exit=True, file=self._stacks)
        every_rank = range(self.groups.world)
        heartbeats = [heartbeat for rank in every_rank if (heartbeat := read(self.folder, rank)) is not None]
        stalled = stalled_rank(heartbeats, self.poll)
        for rank in every_rank:
            self._signal(rank, DUMP)  # a stopped one writes its stacks when it is woken
        stack = self._stack_of(stalled.presence)
        self._keep_collectives()
        late = late_device(heartbeats, stalled)
        text = f"no progress for {seconds:.0f} s; {stalled}{late}; stacks of all ranks: {self.folder}/stacks-*.txt"
        progress = stalled.progress
        self.run_dir.add_event(
            "stuck", rank=stalled.presence.rank, step=progress.step, phase=progress.phase, stack=stack
        )
        log.LOGGER.debug(text)
        if not launch.tell(StoppedRankError(text)):
            log.alarm(text)
        os._exit(EXIT_FAILURE)

    def _stack_of(self, stalled: Presence) -> list[str]:
        """Returns the stalled rank's stacks, most recent call first. A stopped process is woken to write them; then it
        is killed.
        """
        if stalled.rank == self.groups.rank:
            faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._signal(stalled.rank, signal.SIGCONT)
        deadline = time.monotonic() + STACK_TIMEOUT
        text = ""
        while time.monotonic() < deadline and not text:
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                text = self._stacks_of(stalled.rank).read_text(errors="replace", encoding="utf-8")
        self._signal(stalled.rank, signal.SIGKILL)
        return text.splitlines()

    def _signal(self, rank: int, number: int) -> None:
        """Sends a signal to another rank, if it is a process of this machine and still the one that joined the run."""
        process = self._ranks[rank]
        if rank != self.groups.rank and is_alive_here(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process["pid"], number)

    def _end_with_others(self) -> None:
        """Another rank has raised the alarm: write the stacks, give it time to report, and end."""
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._keep_collectives()
        time.sleep(2 * STACK_TIMEOUT)
        os._exit(EXIT_FAILURE)

    def _keep_collectives(self) -> None:
        """Writes beside the stacks what NCCL's flight recorder saw last: tools of PyTorch compare the ranks' files."""
        if self.device is not None and (text := device_progress.recorded_collectives()) is not None:
            with contextlib.suppress(OSError):
                (self.folder / f"collectives-{self.groups.rank}.json").write_text(text, encoding="utf-8")
