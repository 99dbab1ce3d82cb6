"""Which steps are not to be trusted: a loss or gradient that is not finite, or far above what was usual lately.

"Usual" is the median of the last `guard.window` steps and "far" is measured in robust standard deviations (1.4826 x the
median absolute deviation; Iglewicz and Hoaglin 1993), of the loss and of the logarithm of the gradient norm. The window
is a part of the training state, so a resumed run judges as the uninterrupted one.
"""

from __future__ import annotations

import math
from statistics import median

from gpt1_ds.config.sections import FEWEST_STEPS, GuardConfig

NORM_NOT_FINITE = "the gradients are not finite"
LEAST = (0.02, 0.1)  # standard deviation of loss (nats) and of log gradient norm: a flat curve is no trap

Window = tuple[tuple[float, float], ...]  # (loss, log gradient norm) of good steps


def spike(settings: GuardConfig, window: Window, loss: float, norm: float) -> str | None:
    """Returns what is wrong with a step of this loss and gradient norm, or None."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return "the loss is not finite" if not math.isfinite(loss) else NORM_NOT_FINITE
    if not settings.z or len(window) < FEWEST_STEPS:
        return None
    for name, value, past, least in zip(
        ("loss", "gradient norm"), _values(loss, norm), zip(*window, strict=True), LEAST, strict=True
    ):
        usual = median(past)
        z = (value - usual) / max(least, 1.4826 * median(abs(x - usual) for x in past))
        if z > settings.z:
            shown = loss if name == "loss" else norm
            return f"the {name} is {shown:.4g}, {z:.1f} robust standard deviations above the usual (guard.z)"
    return None


def extended(settings: GuardConfig, window: Window, loss: float, norm: float) -> Window:
    """The window after a good step."""
    return (*window, _values(loss, norm))[-settings.window :] if settings.z else window


def divergence(settings: GuardConfig, lowest: float, loss: float) -> str | None:
    """Why a run whose lowest validation loss was `lowest` has diverged with this one, or None."""
    if math.isfinite(loss) and not (settings.rise and loss > lowest + settings.rise):
        return None
    if not math.isfinite(loss):
        return "the held-out loss is not finite"
    return f"held-out loss {loss:.4g} is more than guard.rise={settings.rise:g} above its best, {lowest:.4g}"


def _values(loss: float, norm: float) -> tuple[float, float]:
    return loss, math.log(max(norm, 1e-30))
