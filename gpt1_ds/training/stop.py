"""How a run ends: requests to stop, save or profile, how all ranks come to the same answer at the same step, and
the exit code.

A signal only sets a flag. Files in the run folder are looked at by rank 0. At every step boundary one small reduction
over all ranks decides, so no rank saves or leaves alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpt1_ds.common import log, stop_signals
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.files import discard
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher import launch
from gpt1_ds.training.state import HANDOVER, USER

UNSAVED = "ended without saving; the same command continues from the last checkpoint, if there is one"


@dataclass(frozen=True)
class Decision:
    """What all ranks do after this step. `stop`: None, `user` (end) or `handover` (end, to be continued)."""

    stop: str | None
    save: bool
    bad: bool  # some rank found that the step cannot be trusted
    written: bool  # every rank has written its part of the save under way
    fingerprint: str  # of the batch that all ranks together consumed


class Requests:
    """Collects what was asked of this rank; installs the signal handlers. `takes` says how long a stop takes."""

    def __init__(self, run_dir: RunDir, groups: ProcessGroups) -> None:
        self.run_dir, self.groups = run_dir, groups
        self.job = os.environ.get("SLURM_JOB_ID", "")
        self.deadline = float(os.environ.get("GPT1_DS_DEADLINE") or "inf")  # near the job's limit; seconds since 1970
        self.takes: Callable[[], str] = str
        self.wants_profile = False  # since the last `agree`, until `profiled`; the same on all ranks
        self.is_over = False  # no step follows: who ends the ranks' processes asks for nothing
        self._signalled = False
        self._interrupts = 0
        self._answered: dict[Path, tuple[int, ...] | None] = {}  # requests that could not be removed
        stop_signals.listen(self._note)

    def _note(self, number: int, _: Any) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:  # a person who presses Ctrl-C twice does not want to wait for a save
            raise KeyboardInterrupt(UNSAVED)
        # at once, because the next signal (a terminal's and the launcher's) may come while this one is answered
        first, self._signalled = not self._signalled, True
        if first and not self.is_over and self.groups.rank == 0 and not launch.is_ending():
            again = "; Ctrl-C again ends it without saving" if log.is_terminal() else ""
            log.say_from_handler(f"asked to stop: the run saves after this step and ends{self.takes()}{again}")

    def agree(self, fingerprint: int, written: bool, bad: bool, ahead: float = 0.0) -> Decision:
        """Called by all ranks after each step. `fingerprint`: this rank's part of the batch's; `written`: whether its
        part of a save under way is on disk; `bad`: whether the step cannot be trusted; `ahead`: seconds for which
        nothing will be asked again. Raises TrainingError when the run folder has gone.
        """
        user = handover = save = profile = gone = False
        if self.groups.rank == 0:
            gone = _stamp(self.run_dir.checkpoints) == ()
            user, save, profile = map(self._is_asked, self.run_dir.requests)
            handover = self._is_job_ending(ahead)
        here = [fingerprint, user, handover or self._signalled, save, profile, written, bad, gone]
        votes = torch.tensor(here, dtype=torch.int64)
        dist.all_reduce(votes, group=self.groups.control_group)
        total, users, handovers, saves, profiles, written_parts, bads, missing = (int(vote) for vote in votes)
        if missing:
            raise TrainingError(f"{self.run_dir.path}: the run folder is gone; put it back and run again")
        self.wants_profile = profiles > 0
        stop = USER if users else HANDOVER if handovers else None
        return Decision(stop, saves > 0, bads > 0, written_parts == self.groups.world, f"{total % 2**64:016x}")

    def must_hand_over(self, ahead: float) -> bool:
        """Returns whether some rank was asked to stop since the last step, or what takes `ahead` seconds would outlast
        the job. All ranks call it.
        """
        here = self._signalled or (self.groups.rank == 0 and self._is_job_ending(ahead))
        return any(self.groups.gather(here))

    def _is_job_ending(self, ahead: float) -> bool:
        """Returns whether the job was asked to hand over, or ends within `ahead` seconds."""
        asked = bool(self.job) and self._is_asked(self.run_dir.job_stop(self.job))
        return asked or time.time() + ahead >= self.deadline

    def honoured(self, decision: Decision) -> None:
        """Removes the request files that this decision answered."""
        if self.groups.rank == 0:
            answered = [self.run_dir.save] * decision.save + [self.run_dir.stop] * (decision.stop == USER)
            answered += [self.run_dir.job_stop(self.job)] * bool(decision.stop and self.job)
            for path in answered:
                self._remove(path)

    def profiled(self) -> None:
        """The profile that a person asked for is written, or has failed. All ranks call it."""
        self.wants_profile = False
        if self.groups.rank == 0:
            self._remove(self.run_dir.profile_request)

    def _remove(self, path: Path) -> None:
        if discard(path):
            return
        self._answered[path] = _stamp(path)
        log.say(f"{path}: is done, but cannot be removed; remove it, or the next start answers it again")

    def _is_asked(self, path: Path) -> bool:
        """Returns whether a person put a request there that was not answered yet."""
        stamp = _stamp(path)
        return bool(stamp) and self._answered.get(path) != stamp


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Tells a file from its successor; empty when there is none, None when the file system cannot say just now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
