"""Redundant passes over the gradients removed from DeepSpeed's BF16_Optimizer; results are bit-identical.

A step of GPT-1 on few tokens is bound by memory: on 500 tokens these passes were 40 % of it. Gradients are written as
fp32 once instead of zeroed and added to, dropped instead of zeroed, clipped inside the fused update instead of before
it, not reduced over a single rank, and on a CPU new weights are rounded to bf16 while they are still in its cache. On
CUDA the update decides on the device what DeepSpeed reads the norm for.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import all_gather_dp_groups
from torch import Tensor

from gpt1_ds.engine.gradient_norm import clip_in_update, decides_on_device, square_sum


def patch_bf16_optimizer(engine: Any, data_size: int) -> None:
    """Replace the methods on this DeepSpeed engine alone; other optimizers stay as they are."""
    optimizer = engine.optimizer
    if not isinstance(optimizer, BF16_Optimizer):
        return
    optimizer._update_hp_grad = MethodType(_update_hp_grad, optimizer)
    optimizer.clear_hp_grads = MethodType(_clear_hp_grads, optimizer)
    optimizer.clear_lp_grads = MethodType(_clear_lp_grads, optimizer)
    optimizer.get_grads_for_norm = MethodType(_gradients_for_norm, optimizer)
    if decides_on_device(optimizer.fp32_groups_flat_partition[0].device):
        optimizer.step = MethodType(_step, optimizer)
    else:
        _round_in_update(optimizer)
    if data_size == 1:
        engine.buffered_allreduce_fallback = _nobody_else


@torch.no_grad()
def _step(optimizer: Any) -> None:
    """DeepSpeed's step without its reads of the norm, each of which would wait for the device."""
    (norm,), _ = optimizer.get_grads_for_norm()
    group = optimizer.mpu.get_model_parallel_group()
    if group.size() > 1:
        square = norm.square()
        dist.all_reduce(square, group=group)
        norm = square.sqrt()
    optimizer._global_grad_norm = clip_in_update(optimizer.optimizer, norm, optimizer.clip_grad)
    partitions = zip(optimizer.fp32_groups_flat_partition, optimizer.fp32_groups_gradient_flat_partition, strict=True)
    for master, gradient in partitions:
        master.grad = gradient
    optimizer.optimizer.step()
    optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()
    optimizer.clear_hp_grads()


@torch.no_grad()
def _update_hp_grad(optimizer: Any, lp: torch.nn.Parameter, group: int, index: int, clear_lp_grads: bool) -> None:
    """Take a micro-batch's gradient over into fp32: written if it is the step's first, else added."""
    if lp.grad is None:
        return
    hp_grad = optimizer.fp32_groups_gradients[group][index]
    gradient = lp.grad.view(hp_grad.shape)
    if optimizer.fp32_groups_has_gradients[group][index]:
        hp_grad.add_(gradient)
    else:
        hp_grad.copy_(gradient)
    lp._hp_grad = hp_grad  # type: ignore[attr-defined]
    optimizer.fp32_groups_has_gradients[group][index] = True
    lp.grad = None


def _clear_hp_grads(optimizer: Any) -> None:
    for group, gradients in enumerate(optimizer.fp32_groups_gradients):
        optimizer.fp32_groups_has_gradients[group] = [False] * len(gradients)


def _clear_lp_grads(optimizer: Any, set_to_none: bool = True) -> None:
    """Without a gradient there, the next backward pass writes one instead of adding to it."""
    for group in optimizer.bf16_groups:
        for parameter in group:
            parameter.grad = None


def _gradients_for_norm(optimizer: Any, for_clipping: bool = False) -> Any:
    """DeepSpeed asks twice in a step: for the norm's gradients, and for those that it then multiplies to clip them. The
    first time one number is given, their norm. The second time none are: the fused update divides by `grad_scale` as it
    reads them.
    """
    if not for_clipping:
        for group, gradients in enumerate(optimizer.fp32_groups_gradients):
            for index, gradient in enumerate(gradients):
                if not optimizer.fp32_groups_has_gradients[group][index]:
                    gradient.zero_()  # nothing flowed here in this step: what is left is of an earlier one
        found, experts = BF16_Optimizer.get_grads_for_norm(optimizer)
        if not found:  # a pipeline stage that holds the tied head alone owns none
            return [torch.zeros((), device=optimizer.fp32_groups_gradients_flat[0].device)], experts
        if found[0].is_cuda and len(found) == sum(map(len, optimizer.fp32_groups_gradients)):
            found = optimizer.fp32_groups_actual_gradients_flat  # all of them, as few long tensors
        return [square_sum(found).sqrt()], experts
    norm = torch.as_tensor(optimizer._global_grad_norm, dtype=torch.float32)
    scale = ((norm + 1e-6) / optimizer.clip_grad).clamp(min=1.0)  # DeepSpeed's and torch's eps
    optimizer.optimizer.grad_scale = scale.to(optimizer.fp32_groups_flat_partition[0].device)
    return []


def _round_in_update(optimizer: Any) -> None:
    """The update writes the bf16 weights, so what DeepSpeed does after it is left with the gather."""
    groups = optimizer.real_dp_process_group
    partitions = zip(optimizer.fp32_groups_flat_partition, optimizer.bf16_partitioned_groups, groups, strict=True)
    optimizer.optimizer.copies = {master: parts[group.rank()] for master, parts, group in partitions}
    optimizer.update_lp_params = MethodType(_gather, optimizer)


def _gather(optimizer: Any) -> None:
    all_gather_dp_groups(
        optimizer.bf16_groups_flat,
        optimizer.bf16_partitioned_groups,
        optimizer.real_dp_process_group,
        optimizer.nccl_start_alignment_factor,
        optimizer.allgather_bucket_size,
    )


def _nobody_else(**_: Any) -> None:
    """The reduction over one rank."""


class FlatGradients:
    """The fp32 gradients of a BF16_Optimizer, as engine/graphs.py wants them."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.buffers: list[Tensor] = optimizer.fp32_groups_gradients_flat

    def marks(self) -> list[list[bool]]:
        """Which gradients this step has written."""
        return [list(written) for written in self.optimizer.fp32_groups_has_gradients]

    def mark(self, marks: list[list[bool]]) -> None:
        self.optimizer.fp32_groups_has_gradients[:] = [list(written) for written in marks]
