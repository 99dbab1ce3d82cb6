"""Where a run stands: what its checkpoints record besides weights and optimizer, the same on every rank; and how a run
ends, with the exit code that says so. Never imports torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpt1_ds.common.errors import EXIT_CONTINUE
from gpt1_ds.launcher.launch import STORE_VARIABLE


@dataclass(frozen=True)
class Best:
    """The best evaluation so far: after `step` updates, with `score`, of which higher is better. Pre-training says of
    what it is: `measure` is checkpoint.best.
    """

    step: int
    score: float
    measure: str = ""

    def to_manifest(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest says of it."""
        named = {"best_measure": self.measure} if self.measure else {}
        return {"best": {"step": self.step, "score": self.score}, **named}


@dataclass(frozen=True)
class TrainingState:
    """After `step` finished steps."""

    step: int = 0
    tokens: int = 0  # trained on
    evaluated: int = 0  # step of the last evaluation
    best: Best | None = None
    skipped_batches: tuple[int, ...] = ()  # numbers of the batches that a rollback left out, ascending
    window: tuple[tuple[float, float], ...] = ()  # (loss, log gradient norm) of the last good steps
    lowest_validation_loss: float = math.inf

    def batch_number(self, step: int) -> int:
        """Returns the batch of `step`: the `step`-th of those that are not skipped."""
        number = step
        for skipped in self.skipped_batches:
            number += skipped <= number
        return number

    def as_best(self, score: float, measure: str) -> TrainingState | None:
        """Returns this state as the best so far; None where it is not."""
        if self.best is not None and score <= self.best.score:
            return None
        return replace(self, best=Best(self.step, score, measure))

    def to_manifest(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest says of it."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "passed_over": list(self.skipped_batches),
            "evaluated": self.evaluated,
            "guard": [list(pair) for pair in self.window],
            **(self.best.to_manifest() if self.best else {}),
            "lowest_held_out": self.lowest_validation_loss,
        }

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], lowest: float) -> TrainingState:
        """`lowest` is the validation loss of a run that has measured none."""
        return cls(
            step=int(manifest["step"]),
            tokens=int(manifest["tokens"]),
            evaluated=int(manifest.get("evaluated", manifest["step"])),
            best=Best(**best, measure=manifest.get("best_measure") or "") if (best := manifest.get("best")) else None,
            skipped_batches=tuple(manifest.get("passed_over") or ()),
            window=tuple((float(loss), float(norm)) for loss, norm in manifest.get("guard") or ()),
            lowest_validation_loss=float(manifest.get("lowest_held_out", lowest)),
        )


DONE, USER, HANDOVER = "done", "user", "handover"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `done`, `user` (STOP file) or `handover` (saved, to be continued), after `step` steps."""

    reason: str
    step: int

    @property
    def exit_code(self) -> int:
        """75 for a run to be continued; 0 under torchrun or srun, which would take 75 for a crash and end the job."""
        under_launcher = "RANK" in os.environ and STORE_VARIABLE not in os.environ
        return EXIT_CONTINUE if self.reason == HANDOVER and not under_launcher else 0
