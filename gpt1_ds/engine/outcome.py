"""What a step came to: its loss and its gradient norm, and whether its update happened. The host reads both numbers
from the device together, once: before the update where something has to be decided there, else after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.engine.deepspeed.zero import INVALID, filter_updates
from gpt1_ds.engine.transfer import read_scalars

Rejects = Callable[[float, float], bool]  # (loss, gradient norm before clipping) -> whether to skip the update
TotalLoss = Callable[[], tuple[Tensor, int]]  # what to divide by what for the mean loss of the step, on every rank


class StepOutcome:
    """The loss and the norm of one step after another. All ranks call its methods together."""

    def __init__(self, total_loss: TotalLoss, loss_scale: Callable[[], float]) -> None:
        self._total_loss, self._loss_scale = total_loss, loss_scale
        self._decides = False
        self._rejects: Rejects | None = None
        self._read: tuple[float, float] | None = None  # of this step, where its update has been decided

    @property
    def judge(self) -> Callable[[Tensor], Tensor] | None:
        """Returns what decides about an update of ZeRO 0; None where a norm that is finite is enough."""
        return self.decide if self._rejects is not None else None

    def reject(self, rejects: Rejects, optimizer: Any) -> None:
        """Skips every update from now on whose (loss, gradient norm) `rejects` returns True for, as if the gradients
        were not finite. All ranks must return the same.
        """
        self._rejects = rejects
        self.decide_before(optimizer)

    def decide_before(self, optimizer: Any) -> None:
        """Reads loss and norm before every update of this DeepSpeed optimizer, from now on."""
        if not self._decides:
            filter_updates(optimizer, self.decide)
        self._decides = True

    def decide(self, scaled_norm: Tensor) -> Tensor:
        """Returns the norm on the host, INVALID to skip the update. The step's loss is read with it, so that this is
        the step's one wait for the device.
        """
        total, parts = self._total_loss()
        loss, norm = read_scalars(total, scaled_norm)
        unscaled = norm / self._loss_scale()
        if not 0 <= unscaled < float("inf"):
            unscaled = float("inf")
        elif self._rejects is not None and self._rejects(loss / parts, unscaled):
            norm, unscaled = INVALID, float("inf")
        self._read = loss / parts, unscaled
        return torch.tensor(norm, dtype=scaled_norm.dtype)

    def after(self, norm: Tensor | float, mean_loss: Tensor | None = None) -> tuple[float, float]:
        """Returns (loss, norm) after the update. `norm` and `mean_loss` (where all ranks have it already) are read
        where nothing had to be decided before.
        """
        if self._read is None:
            total, parts = self._total_loss() if mean_loss is None else (mean_loss, 1)
            loss, norm = read_scalars(total, norm)
            return loss / parts, norm
        found, self._read = self._read, None
        return found
