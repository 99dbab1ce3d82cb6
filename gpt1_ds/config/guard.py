"""What a run does when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    step_timeout: float = 600.0  # seconds a collective may wait for the slowest rank before the run ends
    init_timeout: float = 600.0  # seconds all ranks have to meet at the start
    lock_timeout: float = 60.0  # seconds to wait for another process that still writes the run folder

    def problems(self) -> Iterator[str]:
        for key in ("step_timeout", "init_timeout", "lock_timeout"):
            if not getattr(self, key) > 0:
                yield f"guard.{key}={getattr(self, key)} must be above 0 seconds"
