"""`train.profile`, or a file PROFILE in the run folder: a trace of a few steps on every rank, and one summary of where
their time went. Who asks by the file also gets a snapshot of a GPU's memory.

The phases that a rank reports to the watchdog become the ranges of the trace, so that both name the same phases.
Nothing is installed outside of the window, and nothing inside it changes a number of the training.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import naming, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.device import held_bytes
from gpt1_ds.monitoring import trace
from gpt1_ds.monitoring.watchdog import SAVE, HangWatchdog
from gpt1_ds.tracking import phases

ASKED_STEPS = 5  # that follow a file PROFILE
ALLOCATIONS = 200_000  # the last of a rank's GPU that a snapshot of its memory lists
Pause = Callable[[], AbstractContextManager[None]]  # stops the clock that times steps


def window_note(train: TrainConfig, done: int, steps: int) -> str | None:
    """Says which steps of `train.profile` a run of `steps` that has `done` some does not come to; None where there are
    none.
    """
    window = train.profiled
    remaining = range(max(window.start, done + 1), min(window.stop, steps + 1))
    if not window or remaining == window:
        return None
    why = f"ends with step {steps}" if window.stop > steps + 1 else f"continues after step {done}"
    what = f"steps {remaining[0]} to {remaining[-1]} are" if remaining else "nothing is"
    return f"train.profile={train.profile}: the run {why}; {what} profiled"


class Request(Protocol):
    """A person's request for a profile, the same on all ranks."""

    wants_profile: bool

    def profiled(self) -> None:
        """The request is answered."""


class Profile:
    """The recording of windows of steps, one after the other: that of `train.profile`, and those that are asked for.
    Every method is called by all ranks together.
    """

    def __init__(
        self,
        train: TrainConfig,
        steps: int,
        run_dir: RunDir,
        engine: Engine,
        watchdog: HangWatchdog,
        pause: Pause,
        request: Request,
    ) -> None:
        self.steps, self.request, self.is_answering = steps, request, False
        self.train, self.window, self.run_dir, self.folder = train, train.profiled, run_dir, run_dir.profile
        self.engine, self.groups, self.watchdog, self.pause = engine, engine.groups, watchdog, pause
        self._recording: ProfiledWindow | None = None

    def at(self, step: int) -> None:
        """Step `step` begins: the recording may begin with it, or end with the step before."""
        if step not in self.window:
            self.end()
        if self._recording is None and (step in self.window or self.request.wants_profile):
            with self.pause():
                self._begin(step)
        if self._recording is not None:
            self._recording.step(step)

    def _begin(self, step: int) -> None:
        if self.request.wants_profile:
            self._answer(step)
        try:
            self.groups.on_rank_0(self._clear)
        except UserError as problem:
            self._give_up(problem)
            self._end_answer()
            return
        origin_ns = self.groups.share(time.time_ns())
        if self._has_memory:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS, stacks="python")
        self._recording = ProfiledWindow(self.engine.device, origin_ns)
        self.watchdog.listener = self._recording.phase

    def _clear(self) -> None:
        """Removes an older profile of this run, which may have been one of more ranks."""
        self.folder.mkdir(exist_ok=True)
        for kind in ("*.trace.json.gz", "summary.*", "*.memory.pickle"):
            for old in self.folder.glob(kind):
                old.unlink()

    def end(self) -> None:
        """Ends the recording, if there is one, and writes it. A full disk costs the profile, not the run."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        configured, last = self.train.profiled, int(recording.steps[-1].removeprefix("step "))
        self.window = configured if configured and configured.start > last else range(0)  # it is recorded once
        self.watchdog.listener = None
        self.watchdog.beat(SAVE)
        with self.pause():
            recording.stop()
            of_this_rank = {**self._place(), **phases.rank_summary(recording.read())}
            of_ranks = self.groups.gather(of_this_rank)
            try:
                self.groups.on_rank_0(lambda: self._summarise(of_ranks))
                path = self.folder / f"rank-{self.groups.rank}.trace.json.gz"
                self.groups.agree(lambda: trace.write(recording.recorder, path))
                if self._has_memory:
                    self.groups.agree(lambda: _write_memory(self.folder / f"rank-{self.groups.rank}.memory.pickle"))
            except UserError as problem:
                self._give_up(problem)
            finally:
                if self._has_memory:
                    torch.cuda.memory._record_memory_history(enabled=None)
            self._end_answer()

    @property
    def _has_memory(self) -> bool:
        """Returns whether the recording has a snapshot of memory."""
        return self.is_answering and self.engine.device.type == "cuda"

    def _answer(self, step: int) -> None:
        """Moves the window to `step`, for the person who asked by the file PROFILE."""
        self.is_answering, self.window = True, range(step, min(step + ASKED_STEPS, self.steps + 1))
        if self.groups.rank == 0:
            memory = "" if self._has_memory else "; a CPU has no snapshot of its memory"
            log.say(f"PROFILE: steps {step} to {self.window[-1]} are recorded in {self.folder}{memory}")

    def _end_answer(self) -> None:
        if self.is_answering:
            self.is_answering = False
            self.request.profiled()

    def _place(self) -> dict[str, Any]:
        groups = self.groups
        replica = groups.data_rank * groups.layout.tensor + groups.tensor_rank
        return {"rank": groups.rank, "stage": groups.pipeline_rank, "replica": replica, "host": os.uname().nodename}

    def _summarise(self, of_ranks: list[dict[str, Any]]) -> None:
        layout = self.groups.layout
        sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
        summary = phases.combine(of_ranks, sizes, self.engine.micro_batches)
        summary["device"] = torch.cuda.get_device_name() if self.engine.device.type == "cuda" else "cpu"
        summary["threads"] = torch.get_num_threads()
        first, last = summary["steps"][0], summary["steps"][-1]
        milliseconds = 1e3 * summary["step_seconds"]
        log.say(
            f"profile of steps {first} to {last}, {milliseconds:.1f} ms each, mean of ranks and steps: {self.folder}"
        )
        for line in phases.table(summary):
            log.say(line)
        write_json(self.folder / "summary.json", summary)
        self.run_dir.add_event("profiled", first=first, last=last, folder=str(self.folder))

    def _give_up(self, problem: UserError) -> None:
        self.window = range(0)
        if self.groups.rank == 0:
            log.say(f"the profile is not complete: {problem}; training continues")


def _write_memory(path: Path) -> None:
    """Writes what is allocated on this rank's GPU, and its last allocations with their callers, for
    pytorch.org/memory_viz; whole or not at all. Raises UserError or OSError.
    """
    hidden = path.with_name(f".{path.name}")
    try:
        with naming(path):
            torch.cuda.memory._dump_snapshot(str(hidden))
            os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


class ProfiledWindow:
    """torch's profiler while it records, with ranges of steps and phases. `step` and `phase` end the one before."""

    def __init__(self, device: torch.device, origin_ns: int) -> None:
        self.device, self.origin_ns = device, origin_ns
        self.steps: list[str] = []
        self.phases: list[str] = []
        self.memory: list[int] = []
        self._step, self._phase = contextlib.ExitStack(), contextlib.ExitStack()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.recorder = profile(activities=activities, record_shapes=True, with_flops=True)
        self.recorder.start()

    def step(self, number: int) -> None:
        self._close()
        self.steps.append(f"step {number}")
        self._step.enter_context(record_function(self.steps[-1]))

    def phase(self, name: str) -> None:
        self._phase.close()
        self.phases.append(name)
        self.memory.append(held_bytes(self.device))
        self._phase.enter_context(record_function(name))

    def _close(self) -> None:
        self._phase.close()
        self._step.close()

    def stop(self) -> None:
        self._close()
        self.recorder.stop()

    def read(self) -> phases.Recording:
        return trace.read(self.recorder, self.steps, self.phases, self.memory, self.origin_ns)
