"""Which steps are not to be trusted: a loss or gradient that is not finite, or far above what was usual lately.

"Usual" is the median of the last `guard.window` steps and "far" is measured in robust standard deviations (1.4826 x the
median absolute deviation; Iglewicz and Hoaglin 1993), of the loss and of the logarithm of the gradient norm. The window
travels in the checkpoint, so a resumed run judges as the uninterrupted one.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from gpt1_ds.config.guard import FEWEST_STEPS, GuardConfig

NORM_NOT_FINITE = "the gradients are not finite"
FLOORS = (0.02, 0.1)  # least standard deviation of loss (nats) and of log gradient norm: a flat curve is no trap


class Guard:
    """Keeps the window of (loss, log norm) of good steps; the same on every rank."""

    def __init__(self, settings: GuardConfig, uniform: float = math.inf) -> None:
        """`uniform` is the loss of a model that knows nothing: no run that learns stays above it."""
        self.settings = settings
        self.window: list[tuple[float, float]] = []
        self.lowest = uniform  # held-out loss so far

    def problem(self, loss: float, norm: float) -> str | None:
        """What is wrong with a step that has this loss and gradient norm, or None."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return "the loss is not finite" if not math.isfinite(loss) else NORM_NOT_FINITE
        if not self.settings.z or len(self.window) < FEWEST_STEPS:
            return None
        for name, value, past, floor in zip(
            ("loss", "gradient norm"), self._values(loss, norm), zip(*self.window, strict=True), FLOORS, strict=True
        ):
            usual = median(past)
            z = (value - usual) / max(floor, 1.4826 * median(abs(x - usual) for x in past))
            if z > self.settings.z:
                shown = loss if name == "loss" else norm
                return f"the {name} is {shown:.4g}, {z:.1f} robust standard deviations above the usual (guard.z)"
        return None

    def accept(self, loss: float, norm: float) -> None:
        """Let a good step count as usual."""
        if self.settings.z:
            self.window = [*self.window, self._values(loss, norm)][-self.settings.window :]

    def risen(self, held_out_loss: float) -> str | None:
        """Why the run has diverged, by its held-out loss, or None."""
        before, allowed = self.lowest, self.settings.rise
        if allowed and not held_out_loss <= before + allowed:
            return f"held-out loss {held_out_loss:.4g} is more than guard.rise={allowed:g} above its best, {before:.4g}"
        self.lowest = min(before, held_out_loss)
        return None

    def state(self) -> list[Any]:
        return [list(values) for values in self.window]

    def restore(self, state: list[Any]) -> None:
        self.window = [(float(loss), float(log_norm)) for loss, log_norm in state]

    @staticmethod
    def _values(loss: float, norm: float) -> tuple[float, float]:
        return loss, math.log(max(norm, 1e-30))
