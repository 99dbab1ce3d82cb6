"""Redundant passes over the gradients are removed from DeepSpeed's BF16_Optimizer. Losses keep their bits, but where
gradients are clipped: the update divides by the norm once, DeepSpeed rounds a product before it.

A step of GPT-1 on few tokens is bound by memory: on 500 tokens these passes were 40 % of it. Gradients are written as
fp32 once instead of zeroed and added to, dropped instead of zeroed, clipped inside the fused update instead of before
it, not reduced over a single rank, and on a CPU new weights are rounded to bf16 while they are still in its cache. On
CUDA the update decides on the device what DeepSpeed reads the norm for, and a rank reads its own partition for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import all_gather_dp_groups
from torch import Tensor

from gpt1_ds.engine.gradient_norm import clip_in_update, decides_on_device, divisor, square_sum


def patch_bf16_optimizer(engine: DeepSpeedEngine, data_size: int) -> None:
    """Replaces the methods on this DeepSpeed engine alone; other optimizers stay as they are."""
    optimizer = engine.optimizer
    if not isinstance(optimizer, BF16_Optimizer):
        return
    _forget_streams(optimizer)
    optimizer.summed_ranks = 1  # see expect_sums
    optimizer.take_over = MethodType(_take_over, optimizer)
    optimizer.update_hp_grads = MethodType(_update_hp_grads, optimizer)
    optimizer.clear_hp_grads = MethodType(_clear_hp_grads, optimizer)
    optimizer.clear_lp_grads = MethodType(_clear_lp_grads, optimizer)
    optimizer.get_grads_for_norm = MethodType(_gradients_for_norm, optimizer)
    if decides_on_device(optimizer.fp32_groups_flat_partition[0].device):
        optimizer.step = MethodType(_step, optimizer)
    else:
        _round_in_update(optimizer)
    if data_size == 1:
        engine.buffered_allreduce_fallback = _nobody_else


def expect_sums(optimizer: BF16_Optimizer, ranks: int) -> None:
    """From now on the reduction leaves sums over `ranks`: the norm and the update divide by them as they read the
    gradients. Where `ranks` is a power of two the bits are those of a division before.
    """
    optimizer.summed_ranks = ranks
    device = optimizer.fp32_groups_flat_partition[0].device
    optimizer.optimizer.grad_scale = torch.full((), float(ranks), device=device)


def _forget_streams(optimizer: BF16_Optimizer) -> None:
    """DeepSpeed lets autograd record how it joins the weights and cuts them into fragments, and keeps the results. With
    them live the nodes that write the weights' gradients, and a node runs in the stream in which it was made: the
    default one, which a captured backward pass must not touch. Without the record every pass makes nodes of its own.
    """
    for recorded in (optimizer.bf16_groups_flat, *optimizer.bf16_partitioned_groups):
        recorded[:] = [values.detach() for values in recorded]
    for group in optimizer.bf16_groups:
        for parameter in group:
            if parameter._hp_mapping is not None:  # None: all of it is in other partitions
                parameter._hp_mapping.lp_fragment = parameter._hp_mapping.lp_fragment.detach()


@torch.no_grad()
def _step(optimizer: BF16_Optimizer) -> None:
    """DeepSpeed's step without its reads of the norm, each of which would wait for the device."""
    (norm,), _ = optimizer.get_grads_for_norm()
    group = optimizer.mpu.get_model_parallel_group()
    if group.size() > 1:
        square = norm.square()
        dist.all_reduce(square, group=group)
        norm = square.sqrt()
    optimizer._global_grad_norm = clip_in_update(optimizer.optimizer, norm, optimizer.clip_grad, optimizer.summed_ranks)
    partitions = zip(optimizer.fp32_groups_flat_partition, optimizer.fp32_groups_gradient_flat_partition, strict=True)
    for master, gradient in partitions:
        master.grad = gradient
    optimizer.optimizer.step()
    optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.update_lp_params()
    optimizer.clear_hp_grads()


def _update_hp_grads(optimizer: BF16_Optimizer, clear_lp_grads: bool = False) -> None:
    for number, parameters in enumerate(optimizer.bf16_groups):
        optimizer.take_over(number, range(len(parameters)))


@torch.no_grad()
def _take_over(optimizer: BF16_Optimizer, group: int, indices: Iterable[int]) -> None:
    """Takes a micro-batch's gradients over into fp32, in one launch where a GPU can: written if they are the step's
    first, else added.
    """
    written = optimizer.fp32_groups_has_gradients[group]
    for run, known in ((torch._foreach_copy_, False), (torch._foreach_add_, True)):
        into: list[Tensor] = []
        gradients: list[Tensor] = []
        for index in indices:
            parameter, hp_grad = optimizer.bf16_groups[group][index], optimizer.fp32_groups_gradients[group][index]
            if parameter.grad is None or written[index] != known:
                continue
            into.append(hp_grad)
            gradients.append(parameter.grad.view(hp_grad.shape))
            parameter._hp_grad, parameter.grad, written[index] = hp_grad, None, True
        if into:
            run(into, gradients)


def _clear_hp_grads(optimizer: BF16_Optimizer) -> None:
    for group, gradients in enumerate(optimizer.fp32_groups_gradients):
        optimizer.fp32_groups_has_gradients[group] = [False] * len(gradients)


def _clear_lp_grads(optimizer: BF16_Optimizer, set_to_none: bool = True) -> None:
    """Without a gradient there, the next backward pass writes one instead of adding to it."""
    for group in optimizer.bf16_groups:
        for parameter in group:
            parameter.grad = None


def _gradients_for_norm(optimizer: BF16_Optimizer, for_clipping: bool = False) -> Any:
    """DeepSpeed asks twice in a step: for the gradients whose norm it takes, and for those that it multiplies to clip
    them. The first answer is one number, their norm, whose norm is itself. The second is that there are none: the fused
    update divides by `grad_scale` as it reads the gradients.
    """
    if for_clipping:
        norm = torch.as_tensor(optimizer._global_grad_norm, dtype=torch.float32)
        scale = divisor(norm, optimizer.clip_grad, optimizer.summed_ranks)
        optimizer.optimizer.grad_scale = scale.to(optimizer.fp32_groups_flat_partition[0].device)
        return []
    _zero_what_is_old(optimizer)
    gradients, experts = BF16_Optimizer.get_grads_for_norm(optimizer)
    return [_norm(optimizer, gradients)], experts


def _zero_what_is_old(optimizer: BF16_Optimizer) -> None:
    """Where nothing flowed in this step, the buffer still holds the gradient of an earlier one."""
    for group, gradients in enumerate(optimizer.fp32_groups_gradients):
        for index, gradient in enumerate(gradients):
            if not optimizer.fp32_groups_has_gradients[group][index]:
                gradient.zero_()


def _norm(optimizer: BF16_Optimizer, gradients: list[Tensor]) -> Tensor:
    """Returns the norm of the averaged `gradients`; a rank reads its own partition alone where `reads_partition` says
    so.
    """
    if not gradients:  # a pipeline stage that holds the tied head alone owns none
        return torch.zeros((), device=optimizer.fp32_groups_gradients_flat[0].device)
    if reads_partition(gradients[0].device):
        fragments = _in_partition(optimizer, gradients)
        square = square_sum(fragments) if fragments else torch.zeros((), device=gradients[0].device)
        if optimizer.dp_process_group.size() > 1:
            dist.all_reduce(square, group=optimizer.dp_process_group)
    else:
        square = square_sum(gradients)
    norm, summed = square.sqrt(), optimizer.summed_ranks
    return norm if summed == 1 else norm / summed


def _in_partition(optimizer: BF16_Optimizer, gradients: list[Tensor]) -> list[Tensor]:
    """Returns what lies of these gradients in this rank's partition; all of it in few long tensors."""
    partitions: list[Tensor] = optimizer.fp32_groups_gradient_flat_partition
    if len(gradients) == sum(map(len, optimizer.fp32_groups_gradients)):
        return partitions
    wanted, found = set(map(id, gradients)), []
    for parameters, all_here, partition in zip(
        optimizer.bf16_groups, optimizer.fp32_groups_gradients, partitions, strict=True
    ):
        for parameter, gradient in zip(parameters, all_here, strict=True):
            if id(gradient) in wanted and parameter._hp_mapping is not None:  # None: all of it is in other partitions
                there = parameter._hp_mapping.hp_fragment_address
                found.append(partition.narrow(0, there.start, there.numel))
    return found


def reads_partition(device: torch.device) -> bool:
    """Returns whether the norm is put together from those of the ranks' partitions: the whole gradient is a long read
    for a GPU. A last bit may differ.
    """
    return device.type == "cuda"


def _round_in_update(optimizer: BF16_Optimizer) -> None:
    """The update writes the bf16 weights, so what DeepSpeed does after it is left with the gather."""
    groups = optimizer.real_dp_process_group
    partitions = zip(optimizer.fp32_groups_flat_partition, optimizer.bf16_partitioned_groups, groups, strict=True)
    optimizer.optimizer.copies = {master: parts[group.rank()] for master, parts, group in partitions}
    optimizer.update_lp_params = MethodType(_gather, optimizer)


def _gather(optimizer: BF16_Optimizer) -> None:
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

    def __init__(self, optimizer: BF16_Optimizer) -> None:
        self.optimizer = optimizer
        self.buffers: list[Tensor] = optimizer.fp32_groups_gradients_flat

    def marks(self) -> list[list[bool]]:
        """Returns which gradients this step has written."""
        return [list(written) for written in self.optimizer.fp32_groups_has_gradients]

    def mark(self, marks: list[list[bool]]) -> None:
        self.optimizer.fp32_groups_has_gradients[:] = [list(written) for written in marks]
