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
from torch import Tensor

INVALID = -1.0
Judge = Callable[[Tensor], Tensor]  # the norm, times the loss scale -> the same on the host, INVALID to skip the update


def filter_updates(optimizer: Any, judge: Judge) -> None:
    """Ask `judge` in every step, after the gradients are reduced and before the update."""
    if isinstance(optimizer, BF16_Optimizer):
        _wrap_bf16(optimizer, judge)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        _wrap_stage_3(optimizer, judge)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer):
        _wrap_stages_1_and_2(optimizer, judge)


def reads_norm(optimizer: Any) -> bool:
    """Whether DeepSpeed reads the norm on the host before an update. ZeRO 1 and 2 do so up to three times
    (stage_1_and_2.py:3052, 3200), ZeRO 3 once (utils.py:233). Before that they read whether a gradient is not finite
    (3248; in fp16 stage3.py:3042), which the norm tells, too. `filter_updates` gives them a norm that is on the host.
    """
    return isinstance(optimizer, (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3))


def _wrap_stages_1_and_2(optimizer: Any, judge: Judge) -> None:
    inner = optimizer.scaled_global_norm
    optimizer.scaled_global_norm = lambda *arguments, **keywords: judge(inner(*arguments, **keywords))


def _wrap_stage_3(optimizer: Any, judge: Judge) -> None:
    inner = optimizer._get_norm_groups

    def norm_groups() -> list[Tensor]:
        groups: list[Tensor] = inner()
        norm = judge(combine_grad_norm_groups(groups))
        return [norm] if groups[0].is_cuda or float(norm) < 0 else groups

    optimizer._get_norm_groups = norm_groups


def _wrap_bf16(optimizer: Any, judge: Judge) -> None:
    inner = optimizer.get_grads_for_norm

    def gradients(for_clipping: bool = False) -> Any:
        found = inner(for_clipping)
        if for_clipping:
            return found
        norm = get_global_norm_of_tensors(input_tensors=found[0], mpu=optimizer.mpu, norm_type=optimizer.norm_type)
        if float(judge(torch.as_tensor(norm))) < 0:
            return [torch.full_like(tensor, torch.nan) for tensor in found[0]], found[1]
        return found

    optimizer.get_grads_for_norm = gradients
