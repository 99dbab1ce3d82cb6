"""`train.profile`: a trace of a few steps on every rank, and one summary of where their time went.

What the watch hears of a rank's phases becomes the trace's ranges, so that both speak of the same phases. Nothing is
installed outside of the window, and nothing inside it changes a number of the training.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.device import held_bytes
from gpt1_ds.monitoring import trace
from gpt1_ds.monitoring.watchdog import SAVE, HangWatchdog
from gpt1_ds.tracking import phases

Pause = Callable[[], AbstractContextManager[None]]  # stops the clock that times steps


class Profile:
    """The recording of one window of steps, once. Every method is called by all ranks together."""

    def __init__(
        self, train: TrainConfig, steps: int, run_dir: RunDir, engine: Engine, watchdog: HangWatchdog, pause: Pause
    ) -> None:
        self.train, self.window, self.run_dir, self.folder = train, train.profiled, run_dir, run_dir.profile
        self.engine, self.groups, self.watchdog, self.pause = engine, engine.groups, watchdog, pause
        self._recording: _Recording | None = None
        if self.groups.rank == 0 and self.window and self.window.start > steps:
            log.say(f"train.profile={train.profile}: the run ends with step {steps}; nothing is profiled")

    def at(self, step: int) -> None:
        """Step `step` begins, and with it, perhaps, the recording; or the one before it was the last."""
        if step in self.window and self._recording is None:
            with self.pause():
                self._begin()
        elif step not in self.window:
            self.end()
        if self._recording is not None:
            self._recording.step(step)

    def _begin(self) -> None:
        try:
            self.groups.on_rank_0(self._clear)
        except UserError as problem:
            self._give_up(problem)
            return
        origin_ns = self.groups.share(time.time_ns())
        self._recording = _Recording(self.engine.device, origin_ns)
        self.watchdog.listener = self._recording.phase

    def _clear(self) -> None:
        """An older profile of this run may have been one of more ranks."""
        self.folder.mkdir(exist_ok=True)
        for old in (*self.folder.glob("*.trace.json.gz"), *self.folder.glob("summary.*")):
            old.unlink()

    def end(self) -> None:
        """Write what was recorded, if something is being recorded. A full disk costs the profile, not the run."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self.window = range(0)  # once
        self.watchdog.listener = None
        self.watchdog.beat(SAVE)
        with self.pause():
            recording.stop()
            share = {**self._place(), **phases.share_of(recording.read())}
            shares = self.groups.gather(share)
            try:
                self.groups.on_rank_0(lambda: self._summarise(shares))
                path = self.folder / f"rank-{self.groups.rank}.trace.json.gz"
                self.groups.agree(lambda: trace.write(recording.recorder, path))
            except UserError as problem:
                self._give_up(problem)

    def _place(self) -> dict[str, Any]:
        groups = self.groups
        replica = groups.data_rank * groups.layout.tensor + groups.tensor_rank
        return {"rank": groups.rank, "stage": groups.pipeline_rank, "replica": replica, "host": os.uname().nodename}

    def _summarise(self, shares: list[dict[str, Any]]) -> None:
        layout = self.groups.layout
        sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
        rows = self.train.micro_batch * layout.data
        summary = phases.combine(shares, sizes, self.train.global_batch // rows)
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
        self.run_dir.add_event("profiled", first=first, last=last)

    def _give_up(self, problem: UserError) -> None:
        self.window = range(0)
        if self.groups.rank == 0:
            log.say(f"the profile is not complete: {problem}; training continues")


class _Recording:
    """torch's profiler, and the ranges of steps and phases in it. `step` and `phase` end the one before."""

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
