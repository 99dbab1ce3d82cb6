"""Update rules, as torch optimizers that DeepSpeed wraps.

Weight decay is decided per parameter before ZeRO flattens anything: inside ZeRO every tensor is one-dimensional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from gpt1_ds.config.optimizer import OptimizerConfig


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and embeddings decay, biases and gains do not: the rule of GPT-1's code (more than one dimension)."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(module: nn.Module, settings: OptimizerConfig) -> torch.optim.Optimizer:
    groups = parameter_groups(module, settings.weight_decay)
    arguments: dict[str, Any] = {"lr": settings.lr, "betas": tuple(settings.betas), "eps": settings.eps}
    if settings.name == "adam2018":
        return Adam2018(groups, **arguments)
    return torch.optim.AdamW(groups, **arguments, fused=True)  # fused is one pass over memory and needs no compiler


class Adam2018(torch.optim.Optimizer):
    """The update of GPT-1's published code (openai/finetune-transformer-lm, opt.py), `lr` being lr * schedule:

        lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)
        p   -= lr_t * (m / (sqrt(v) + eps) + weight_decay * p)

    Unlike AdamW, eps is added to the uncorrected root and the decay is multiplied by the bias correction.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        t, gradient = state["step"].item(), parameter.grad
        assert gradient is not None, "step() skips parameters without a gradient"
        first = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate = group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        parameter.mul_(1 - rate * group["weight_decay"]).addcdiv_(first, second.sqrt().add_(group["eps"]), value=-rate)
