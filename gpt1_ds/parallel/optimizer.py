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


class Adam2018(torch.optim.AdamW):
    """The update of GPT-1's published code (openai/finetune-transformer-lm, opt.py), `lr` being lr * schedule:

        lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)
        p   -= lr_t * (m / (sqrt(v) + eps) + weight_decay * p)

    Unlike in AdamW, eps is added to the uncorrected root and the decay is multiplied by the bias correction. This is
    AdamW's fused kernel with another eps and decay at every t:

        lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps')   with eps' = eps / sqrt(1 - b2^t)
        lr * decay' * p                                       with decay' = weight_decay * sqrt(1 - b2^t) / (1 - b1^t)
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        plain = [(group["eps"], group["weight_decay"]) for group in self.param_groups]
        for group in self.param_groups:
            t = 1 + max((float(self.state[p]["step"]) for p in group["params"] if "step" in self.state[p]), default=0)
            root = math.sqrt(1 - group["betas"][1] ** t)
            group["eps"] /= root
            group["weight_decay"] *= root / (1 - group["betas"][0] ** t)
        try:
            super().step()
        finally:
            for group, (eps, decay) in zip(self.param_groups, plain, strict=True):
                group["eps"], group["weight_decay"] = eps, decay
