"""The training loop that people write around a model, without a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.optimizer import parameter_groups
from tools.bench.ours import LEARNING_RATE

Batches = Callable[[int], Sequence[tuple[Tensor, ...]]]  # of a step: its micro-batches


class Loop:
    """Forward, backward, clip, fused AdamW, zero. `model` takes a micro-batch and returns its loss.

    With `masters` the weights and gradients are bf16 and the update is made on fp32 copies; else in what the model
    holds.
    """

    def __init__(
        self, model: nn.Module, settings: OptimizerConfig, batches: Batches, device: str, masters: bool = False
    ) -> None:
        self.model, self.settings, self.batches, self.device, self.steps = (
            model.to(device),
            settings,
            batches,
            device,
            0,
        )
        groups = parameter_groups(model, settings.weight_decay)
        self.weights = [weight for group in groups for weight in group["params"]]
        self.masters = self.weights
        if masters:
            for group in groups:
                group["params"] = [nn.Parameter(weight.detach().clone()) for weight in group["params"]]
            self.masters = [master for group in groups for master in group["params"]]
            model.bfloat16()
        arguments: dict[str, Any] = {"lr": LEARNING_RATE, "betas": tuple(settings.betas), "eps": settings.eps}
        self.optimizer = torch.optim.AdamW(groups, **arguments, fused=True)

    def step(self, model: nn.Module | None = None, autocast: bool = False) -> Tensor:
        """One optimizer step, with another (compiled) form of the model if one is given; its loss."""
        batches = self.batches(self.steps)
        losses = [self.micro_step(batch, len(batches), model, autocast) for batch in batches]
        self.update()
        self.steps += 1
        return torch.stack(losses).sum()

    def micro_step(
        self, batch: Sequence[Tensor], of: int = 1, model: nn.Module | None = None, autocast: bool = False
    ) -> Tensor:
        """Forward and backward of one micro-batch of a step that has `of`; its share of the loss."""
        parts = [part.to(self.device, non_blocking=True) for part in batch]
        with torch.autocast(self.device, torch.bfloat16, enabled=autocast):
            loss = (self.model if model is None else model)(*parts) / of  # a compiled form has no truth value
        loss.backward()
        self._take_gradients()
        return loss.detach()  # type: ignore[no-any-return]

    @torch.no_grad()
    def _take_gradients(self) -> None:
        if self.masters is self.weights:
            return
        for master, weight in zip(self.masters, self.weights, strict=True):
            if master.grad is None:
                master.grad = weight.grad.float()
            else:
                master.grad.add_(weight.grad)
            weight.grad = None

    @torch.no_grad()
    def update(self) -> None:
        """Clip, update, forget the gradients."""
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.masters, self.settings.clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters is not self.weights:
            torch._foreach_copy_(self.weights, self.masters)
