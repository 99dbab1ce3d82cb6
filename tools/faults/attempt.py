"""One start of a campaign's run: a process that can be killed like any other, and what it was doing at that moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.monitoring import heartbeat

STEPS, EVERY, EVALUATED = 40, 5, 4
TINY = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.global_batch=8"),
    *("train.micro_batch=2", "train.log_every=1", f"train.eval_every={EVALUATED}", "train.eval_batches=1"),
    *(f"train.steps={STEPS}", f"checkpoint.every={EVERY}", "guard.lock_timeout=10"),
]
PHASES = ("start-up", "resume", "step", "evaluation", "save", "publish", "end")
IN_SAVES = ("save", "publish")
AIMS = {"save": 5, "publish": 2, "evaluation": 2, "resume": 2, "start-up": 1, "step": 2}  # and their weights
SECONDS_INTO = {"save": 0.2, "publish": 0.2, "evaluation": 0.1, "resume": 0.5, "start-up": 0.5, "step": 3.0}  # at most
VICTIMS = ("one rank", "all ranks", "launcher")
PATIENCE = 300.0  # seconds to wait for the phase that a kill is aimed at


def folder(arguments: list[str]) -> RunDir:
    config = load([], [*TINY, *arguments])
    return RunDir(Path(config.run.dir) / config.run.name)


class Attempt:
    """A run folder's next start, from its newest checkpoint if it has one."""

    def __init__(self, program: str, ranks: int, arguments: list[str], delay: float, seed: int) -> None:
        self.run_dir, self.size = folder(arguments), ranks
        self.resumes = bool(steps_in(self.run_dir.checkpoints))
        self._left_over = set(self._temporaries())
        self._seen: set[int] = set()  # process ids of ranks
        command = [sys.executable, program, "--child", str(ranks), str(delay), str(seed), *arguments]
        self.log = self.run_dir.path.with_suffix(".log")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def ranks(self) -> list[int]:
        """Process ids of its ranks: children of its fork server."""
        servers = _children(self.process.pid)
        found = [pid for server in servers for pid in _children(server) if _is_rank(pid)]
        self._seen.update(found)
        return found

    def phase(self) -> str:
        """What the rank that is furthest is doing, as its heartbeat and the checkpoint folder say."""
        mine = set(self.ranks())
        found = [beat for rank in range(self.size) if (beat := heartbeat.read(self.run_dir.path / "beats", rank))]
        progress = [beat.progress for beat in found if beat.presence.pid in mine]
        if not progress:
            return "start-up"
        latest = max(progress, key=lambda one: (one.step, one.count))
        if latest.step == 0:
            return "resume" if self.resumes else "start-up"
        saves = [path for path in self._temporaries() if path not in self._left_over]
        if saves:
            return "publish" if any((path / "state" / "index.json").exists() for path in saves) else "save"
        if latest.phase.startswith("evaluation"):  # a save begins with one, to know what it has to give when loaded
            return "save" if latest.step % EVALUATED else "evaluation"
        return {"save": "save", "ended": "end"}.get(latest.phase, "step")

    def strike(self, aim: str, victim: str, draw: random.Random) -> str | None:
        """Kill in the phase aimed at, or wherever it is when patience ends: the phase. None: the run ended first."""
        if not self._wait(lambda: bool(self.ranks())):
            return None
        if aim == "resume":
            there = self._wait(lambda: self.phase() != "start-up")
        else:
            there = aim == "start-up" or self._wait(lambda: self.phase() == aim)
        time.sleep(draw.random() * SECONDS_INTO[aim])
        if aim in (*IN_SAVES, "evaluation") and self.phase() != aim:  # it was shorter: the next one, at once
            there = self._wait(lambda: self.phase() == aim)
        if not there:
            return None
        phase, ranks = self.phase(), self.ranks()
        if self.process.poll() is not None or not ranks:
            return None
        chosen = {"launcher": [self.process.pid], "all ranks": ranks, "one rank": draw.sample(ranks, 1)}
        for pid in chosen[victim]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return phase

    def end(self) -> int:
        """Its exit code, when no process of it is left."""
        code = self.process.wait(timeout=1800)
        deadline = time.monotonic() + 10
        while any(map(_is_rank, self._seen)):
            assert time.monotonic() < deadline, "ranks outlived their launcher"
            time.sleep(0.05)
        return code

    def stop(self) -> None:
        """End it at once, when the campaign itself ends."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Until the condition holds or patience ends; False when the process ended first."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            if condition() or time.monotonic() > deadline:
                return True
            time.sleep(0.002)
        return False

    def _temporaries(self) -> list[Path]:
        return list(self.run_dir.checkpoints.glob(".step-*.tmp"))


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
