"""The learning rate as a function of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WARMUP_KEYS = ("warmup_steps", "warmup_fraction")  # exclude one another


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    kind: Literal["cosine", "linear", "wsd", "constant", "rsqrt"] = "cosine"  # after the warm-up; rsqrt: 1 / sqrt(step)
    warmup_steps: int | None = None  # optimizer steps of linear warm-up from 0
    warmup_fraction: float | None = None  # warm-up as a share of the run; nothing named: 0.02
    decay_fraction: float = 0.2  # wsd: share of the run, at its end, in which the rate falls linearly
    final_fraction: float = 0.0  # where the rate ends, one step after the last, as a share of optimizer.lr

    def problems(self) -> Iterator[str]:
        if self.warmup_steps is not None and self.warmup_steps < 0:
            yield f"schedule.warmup_steps={self.warmup_steps} is negative; use 0 for no warm-up"
        for key in ("warmup_fraction", "decay_fraction", "final_fraction"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                yield f"schedule.{key}={value} must be in [0, 1]"
