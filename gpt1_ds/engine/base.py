"""The interface of both engines, dense (plain.py) and pipelined (pipelined.py): a step returns its loss, its gradient
norm and whether its update was applied. The host reads both numbers from the device together, once: before the update
where something has to be decided there, else after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from deepspeed import DeepSpeedEngine
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from gpt1_ds.architecture.architecture import Architecture
from gpt1_ds.engine.adamw import AdamW
from gpt1_ds.engine.deepspeed.zero import INVALID, judge_updates
from gpt1_ds.engine.graphs import GraphedPasses
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.transfer import Sender, read_scalars
from gpt1_ds.model.losses import Loss
from gpt1_ds.objectives.base import HostBatch, Objective, row_facts

Rejects = Callable[[float, float], bool]  # (loss, gradient norm before clipping) -> whether to skip the update
TotalLoss = Callable[[], tuple[Tensor, int]]  # a sum and its divisor, which give the mean loss of the step


class StepOutcome:
    """Reads the loss and the gradient norm of one step after another from the device, both in one read: before the
    update where the host decides about it, else after. All ranks call its methods together.
    """

    def __init__(self, total_loss: TotalLoss, loss_scale: Callable[[], float]) -> None:
        self._total_loss, self._loss_scale = total_loss, loss_scale
        self.rejects: Rejects | None = None  # says which updates are skipped; None: those whose norm is not finite
        self._reads_before = False
        self._read: tuple[float, float] | None = None  # (loss, norm) of this step if they were read before its update

    @property
    def judge_if_any(self) -> Callable[[Tensor], Tensor] | None:
        """Returns `judge`, or None where an update may be applied whenever its norm is finite."""
        return self.judge if self.rejects is not None else None

    def read_before_updates(self, optimizer: Any) -> None:
        """Makes this DeepSpeed optimizer call `judge` before every update, from now on."""
        if not self._reads_before:
            judge_updates(optimizer, self.judge)
        self._reads_before = True

    def judge(self, scaled_norm: Tensor) -> Tensor:
        """Returns the norm on the host, or INVALID to skip the update. The loss is read in the same transfer, so the
        host waits for the device once in a step.
        """
        total, count = self._total_loss()
        loss, norm = read_scalars(total, scaled_norm)
        unscaled = norm / self._loss_scale()
        if not 0 <= unscaled < float("inf"):
            unscaled = float("inf")
        elif self.rejects is not None and self.rejects(loss / count, unscaled):
            norm, unscaled = INVALID, float("inf")
        self._read = loss / count, unscaled
        return torch.tensor(norm, dtype=scaled_norm.dtype)

    def after_update(self, norm: Tensor | float, mean_loss: Tensor | None = None) -> tuple[float, float]:
        """Returns (loss, norm) of the step. If `judge` has not read them before the update, `norm` is read now, with
        `mean_loss` where all ranks have it already.
        """
        if self._read is None:
            total, count = self._total_loss() if mean_loss is None else (mean_loss, 1)
            loss, norm = read_scalars(total, norm)
            return loss / count, norm
        loss_and_norm, self._read = self._read, None
        return loss_and_norm


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of B rows: what the first layer reads (last of it the facts of the rows, int64 [B, F]), and what
    the loss reads.
    """

    inputs: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]

    @classmethod
    def of(cls, batch: HostBatch, keys_B: NDArray[np.int64]) -> MicroBatch:
        facts_BF = row_facts(keys_B, batch.spans, batch.bounds)
        inputs, labels = (tuple(map(torch.from_numpy, part)) for part in ((*batch.inputs, facts_BF), batch.labels))
        return cls(inputs, labels)

    def filled(self, tensors: Iterator[Tensor]) -> MicroBatch:
        """Returns a micro-batch of the same structure with the next tensors of the iterator."""
        return MicroBatch(*(tuple(islice(tensors, len(part))) for part in (self.inputs, self.labels)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return *self.inputs, *self.labels

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Returns the shapes of the inputs: receive buffers of a pipeline fit one set of them."""
        return tuple(part.shape for part in self.inputs)


@dataclass(frozen=True)
class StepResult:
    """One optimizer step as every rank sees it. `grad_norm` is before clipping; infinite when the step was skipped."""

    loss: float
    grad_norm: float
    applied: bool
    loss_scale: float = 1.0


Arriving = Callable[[], list[MicroBatch]]  # waits for micro-batches on the device, and gives them


def ignore_progress(_: str) -> None:
    """Is the `progress` of an engine that nobody watches."""


class Engine(ABC):
    """A model cut over ranks, with its optimizer. `deepspeed` is the DeepSpeed engine inside; `progress` is called with
    the name of each phase before it begins.
    """

    groups: ProcessGroups
    deepspeed: DeepSpeedEngine
    progress: Callable[[str], None] = staticmethod(ignore_progress)
    micro_losses: list[Tensor]  # of the last step on this rank; only the last stage has them
    loss: Loss  # also has the scores and measures of the last step or evaluation
    objective: Objective
    architecture: Architecture
    graphs: GraphedPasses | None = None  # of micro-batches; a pipeline has none
    copied: frozenset[str] = frozenset()  # canonical names that earlier pipeline stages hold, too
    tied_weights: Sequence[tuple[Parameter, ProcessGroup]] = ()  # that other stages hold, too, and the ranks that do

    @abstractmethod
    def step(self, batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        """Returns forward, backward and update on this rank's micro-batches of one global batch."""

    @abstractmethod
    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """Returns the mean of the micro-batches' weighted losses over micro-batches and data-parallel ranks, without
        dropout.
        """

    @property
    def device(self) -> torch.device:
        return torch.device(self.deepspeed.device)

    @property
    def optimizer(self) -> AdamW:
        """Returns our optimizer; above ZeRO 0 it lies inside DeepSpeed's. Its `step` is called once in an update, or
        once for each of its groups.
        """
        return getattr(self.deepspeed.optimizer, "optimizer", self.deepspeed.optimizer)  # type: ignore[no-any-return]

    @property
    def module(self) -> torch.nn.Module:
        return self.deepspeed.module  # type: ignore[no-any-return]

    def filter_updates(self, rejects: Rejects) -> None:
        """From now on skip every update whose (loss, gradient norm) `rejects` returns True for, as if the gradients
        were not finite. All ranks must return the same.
        """
        self.outcome.rejects = rejects
        self.outcome.read_before_updates(self.deepspeed.optimizer)

    def send(self, batches: Sequence[MicroBatch]) -> Arriving:
        """Starts to copy the micro-batches of a step to the device, from any thread; `step` takes what this returns."""
        arrival = self.sender.send([tensor for batch in batches for tensor in batch.tensors])

        def arriving() -> list[MicroBatch]:
            tensors = iter(arrival())
            return [batch.filled(tensors) for batch in batches]

        return arriving

    def _here(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Returns the micro-batches on the device."""
        sent = all(tensor.device.type == self.device.type for batch in batches for tensor in batch.tensors)
        return batches if sent else self.send(batches)()

    @property
    def micro_batches(self) -> int:
        """Returns how many micro-batches of a rank the last step had."""
        return int(self.deepspeed.gradient_accumulation_steps())

    @cached_property
    def outcome(self) -> StepOutcome:
        return StepOutcome(self._total_loss, self.loss_scale)

    @cached_property
    def sender(self) -> Sender:
        return Sender(self.device)

    @abstractmethod
    def _total_loss(self) -> tuple[Tensor, int]:
        """Returns a sum and its divisor, which give the mean loss of the step's micro-batches. All ranks call it."""

    def _result(self, norm: Tensor | float, loss: Tensor | None = None) -> StepResult:
        """Returns the result of a step after its update. `loss` is its mean loss where all ranks have it already."""
        mean, norm = self.outcome.after_update(norm, loss)
        applied = bool(self.deepspeed.was_step_applied()) and norm != float("inf")
        if not applied:
            self.optimizer.recount()
        return StepResult(mean, norm, applied, self.loss_scale())

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)

    def loss_scale(self) -> float:
        return float(getattr(self.deepspeed.optimizer, "loss_scale", 1.0))
