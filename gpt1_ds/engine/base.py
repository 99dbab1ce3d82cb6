"""What both assemblies give the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt1_ds.architecture.architecture import Architecture
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model.losses import Loss
from gpt1_ds.objectives.base import HostBatch, Objective


@dataclass(frozen=True)
class MicroBatch:
    """What the first layer reads, the dropout keys int64 [B] last, and what the loss reads: an objective's business."""

    inputs: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]

    @classmethod
    def of(cls, batch: HostBatch, keys_B: NDArray[np.int64]) -> MicroBatch:
        inputs, labels = (tuple(map(torch.from_numpy, part)) for part in ((*batch.inputs, keys_B), batch.labels))
        return cls(inputs, labels)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Of the inputs: receive buffers of a pipeline fit one set of them."""
        return tuple(part.shape for part in self.inputs)


@dataclass(frozen=True)
class StepResult:
    """One optimizer step as every rank sees it. `grad_norm` is before clipping; infinite when the step was skipped."""

    loss: float
    grad_norm: float
    applied: bool
    loss_scale: float = 1.0


Rejects = Callable[[float, float], bool]  # (loss, gradient norm before clipping) -> whether to skip the update


def _unheard(_: str) -> None:
    """Nobody listens to an engine's progress."""


class AnnouncedLoss:
    """A loss that says when it begins."""

    def __init__(self, loss: Loss, begins: Callable[[], None]) -> None:
        self.loss, self.begins, self.scores = loss, begins, loss.scores

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        self.begins()
        return self.loss(outputs, labels)


class Engine(ABC):
    """A model cut over ranks, with its optimizer. `deepspeed` is the DeepSpeed engine underneath; `progress` is called
    with what the engine is about to do.
    """

    groups: ProcessGroups
    deepspeed: Any
    progress: Callable[[str], None] = staticmethod(_unheard)
    micro_losses: list[Tensor]  # of the last step on this rank; only the last stage has them
    loss: Loss
    objective: Objective
    architecture: Architecture
    copied: frozenset[str] = frozenset()  # canonical names that earlier pipeline stages hold, too

    @abstractmethod
    def step(self, batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        """Forward, backward and update on this rank's micro-batches of one global batch."""

    @abstractmethod
    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """Mean of the micro-batches' weighted losses over micro-batches and data-parallel ranks, without dropout."""

    def announced(self, loss: Loss) -> Loss:
        return AnnouncedLoss(loss, lambda: self.progress("loss"))

    @property
    def scores(self) -> list[Tensor]:
        """[E, K] of each micro-batch of the last step or evaluation of a task; only the last stage has them."""
        return self.loss.scores

    @property
    def device(self) -> torch.device:
        return torch.device(self.deepspeed.device)

    @property
    def module(self) -> torch.nn.Module:
        return self.deepspeed.module  # type: ignore[no-any-return]

    @abstractmethod
    def filter_updates(self, rejects: Rejects) -> None:
        """From now on skip every update whose (loss, gradient norm) `rejects` returns True for, as if the gradients
        were not finite. All ranks must return the same.
        """

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate

    def loss_scale(self) -> float:
        return float(getattr(self.deepspeed.optimizer, "loss_scale", 1.0))
