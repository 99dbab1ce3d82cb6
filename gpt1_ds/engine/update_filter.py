"""Updates that DeepSpeed skips because of their gradient norm.

A rejected update is handled as one whose gradients are not finite: DeepSpeed's optimizers take a norm of -1 for that,
drop the gradients and count a skipped step, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import combine_grad_norm_groups, get_global_norm_of_tensors
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

INVALID = -1.0
Rejects = Callable[[float], bool]  # the unscaled norm -> whether to skip the update


def filter_updates(optimizer: Any, rejects: Rejects) -> None:
    """Ask `rejects` in every step, after the gradients are reduced and before the update."""
    if isinstance(optimizer, BF16_Optimizer):
        _wrap_bf16(optimizer, rejects)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        _wrap_stage_3(optimizer, rejects)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer):
        _wrap_stages_1_and_2(optimizer, rejects)


def _wrap_stages_1_and_2(optimizer: Any, rejects: Rejects) -> None:
    inner = optimizer.scaled_global_norm

    def scaled_global_norm(*arguments: Any, **keywords: Any) -> torch.Tensor:
        norm = inner(*arguments, **keywords)
        return torch.full_like(norm, INVALID) if _is_rejected(norm, optimizer, rejects) else norm

    optimizer.scaled_global_norm = scaled_global_norm


def _wrap_stage_3(optimizer: Any, rejects: Rejects) -> None:
    inner = optimizer._get_norm_groups

    def norm_groups() -> list[torch.Tensor]:
        groups: list[torch.Tensor] = inner()
        if _is_rejected(combine_grad_norm_groups(groups), optimizer, rejects):
            return [torch.full_like(norm, INVALID) for norm in groups]
        return groups

    optimizer._get_norm_groups = norm_groups


def _wrap_bf16(optimizer: Any, rejects: Rejects) -> None:
    inner = optimizer.get_grads_for_norm

    def gradients(for_clipping: bool = False) -> Any:
        found = inner(for_clipping)
        if for_clipping:
            return found
        norm = get_global_norm_of_tensors(input_tensors=found[0], mpu=optimizer.mpu, norm_type=optimizer.norm_type)
        if _is_rejected(torch.as_tensor(norm), optimizer, rejects):
            return [torch.full_like(tensor, torch.nan) for tensor in found[0]], found[1]
        return found

    optimizer.get_grads_for_norm = gradients


def _is_rejected(scaled_norm: torch.Tensor, optimizer: Any, rejects: Rejects) -> bool:
    norm = float(scaled_norm) / float(getattr(optimizer, "loss_scale", 1.0))
    return norm >= 0 and norm != float("inf") and rejects(norm)
