"""The update rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

NEWTON_SCHULZ_STEPS = 5  # of Muon


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw", "adam2018", "muon"] = "adamw"  # adam2018: GPT-1's published code; muon: see momentum
    lr: float = 1e-3  # the schedule's highest learning rate
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # decay of the first and second moment
    momentum: float = 0.95  # muon: decay of the mean gradient of blocks' matrices; the rest has AdamW's two
    eps: float = 1e-8  # added to the root of the second moment
    weight_decay: float = 0.01  # decoupled; on matrices and embeddings, never on biases and gains
    clip: float = 1.0  # largest global gradient norm; 0: no clipping

    def problems(self) -> Iterator[str]:
        if not self.lr > 0:
            yield f"optimizer.lr={self.lr} must be above 0"
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            yield f"optimizer.betas={self.betas} must be two numbers from 0 up to, not including, 1, like [0.9,0.999]"
        if not 0 <= self.momentum < 1:
            yield f"optimizer.momentum={self.momentum} must be from 0 up to, not including, 1, like 0.95"
        if not self.eps > 0:
            yield f"optimizer.eps={self.eps} must be above 0"
        for key in ("weight_decay", "clip"):
            if getattr(self, key) < 0:
                yield f"optimizer.{key}={getattr(self, key)} is negative; use 0 to switch it off"
