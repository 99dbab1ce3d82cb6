"""What a run does when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

FEWEST_STEPS = 20  # before anything is judged
LONGEST = 1e8  # seconds: three years


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    on_spike: Literal["raise", "skip", "rollback"] = "raise"  # end the run; leave the update out; go back and pass over
    z: float = 0.0  # robust standard deviations of loss or gradient norm that are a spike; 0: only what is not finite
    window: int = 128  # last good steps that say what is usual
    rise: float = 0.0  # nats of held-out loss above its best, or above ln(vocabulary), that end it; 0: only not finite
    compare_every: int = 100  # steps between comparisons of what ranks hold in common; 0: only before every save
    step_timeout: float = 600.0  # seconds a rank may go without progress in a step before the run ends
    save_timeout: float = 600.0  # the same while a checkpoint is saved
    init_timeout: float = 600.0  # seconds all ranks have to meet, load and compile, up to their first step's end
    lock_timeout: float = 60.0  # seconds to wait for another process that writes the run folder, or for its lock file

    def problems(self) -> Iterator[str]:
        if self.z < 0:
            yield f"guard.z={self.z} is negative; use 0 for none, or 6 to 10"
        if self.rise < 0:
            yield f"guard.rise={self.rise} is negative; use 0 for none, or 0.5 to 2 nats"
        if self.compare_every < 0:
            yield f"guard.compare_every={self.compare_every} is negative; use 0 to compare only before every save"
        if self.window < FEWEST_STEPS:
            yield f"guard.window={self.window} is too short to say what is usual; use at least {FEWEST_STEPS}"
        for key in ("step_timeout", "save_timeout", "init_timeout", "lock_timeout"):
            if not 0 < getattr(self, key) <= LONGEST:
                yield f"guard.{key}={getattr(self, key)} must be above 0 seconds, and at most {LONGEST:g}"
