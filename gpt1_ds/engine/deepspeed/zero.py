"""DeepSpeed's ZeRO optimizers on CUDA: reductions beside the backward pass, without the waits; and updates that
DeepSpeed skips because of their gradient norm.

A rejected update is handled as one whose gradients are not finite: DeepSpeed's optimizers take a norm of -1 for that,
drop the gradients and count a skipped step, the same on every rank.

DeepSpeed's `overlap_comm` reduces on a stream of its own. In 0.19.8 a bucket's reduction waits for all who fill it
(its issue 8061), two buckets take turns, and what is freed is recorded for that stream (7965). Three things are not
right there, and patched here:

- the host waits for the device after each backward pass;
- ZeRO 2 frees a gradient that is larger than a bucket while its reduction may still read it;
- ZeRO 3 gathers weights on a stream that does not wait for the update which writes them; only a wait of the host, for
  weights that are small enough to be kept whole, hides that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import combine_grad_norm_groups, get_global_norm_of_tensors, is_model_parallel_parameter
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor, nn
from torch.nn import Parameter

from gpt1_ds.engine.gradient_norm import square_sum

INVALID = -1.0
Judge = Callable[[Tensor], Tensor]  # the norm, times the loss scale -> the same on the host, INVALID to skip the update


def judge_updates(optimizer: Any, judge: Judge) -> None:
    """Asks `judge` in every step, after the gradients are reduced and before the update."""
    if isinstance(optimizer, BF16_Optimizer):
        _wrap_bf16(optimizer, judge)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        _wrap_stage_3(optimizer, judge)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer):
        _wrap_stages_1_and_2(optimizer, judge)


def reads_norm(optimizer: Any) -> bool:
    """Returns whether DeepSpeed reads the norm on the host before an update, by `is_invalid_grad_norm`: ZeRO 1 and 2 do
    so in `step` and for every group in `unscale_and_clip_grads`, ZeRO 3 in `step`. Before that they read
    `has_overflow`, ZeRO 3 only in fp16: whether a gradient is infinite or NaN. Then the norm is so as well.
    `judge_updates` supplies a norm that is on the host.
    """
    return isinstance(optimizer, (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3))


def _wrap_stages_1_and_2(optimizer: DeepSpeedZeroOptimizer, judge: Judge) -> None:
    inner = optimizer.scaled_global_norm
    optimizer.scaled_global_norm = lambda *arguments, **keywords: judge(inner(*arguments, **keywords))


def _wrap_stage_3(optimizer: DeepSpeedZeroOptimizer_Stage3, judge: Judge) -> None:
    inner = optimizer._get_norm_groups

    def norm_groups() -> list[Tensor]:
        groups: list[Tensor] = inner()
        norm = judge(combine_grad_norm_groups(groups))
        return [norm] if groups[0].is_cuda or float(norm) < 0 else groups

    optimizer._get_norm_groups = norm_groups


def _wrap_bf16(optimizer: BF16_Optimizer, judge: Judge) -> None:
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


def overlap_stages_1_and_2(optimizer: DeepSpeedZeroOptimizer) -> None:
    """The optimizer reads its switch when gradients arrive; in a pipeline DeepSpeed refuses to turn it on."""
    optimizer.overlap_comm = True
    optimizer.average_tensor = partial(_average, optimizer, optimizer.average_tensor)
    optimizer.overlapping_partition_gradients_reduce_epilogue = partial(_finish, optimizer)


def _average(optimizer: DeepSpeedZeroOptimizer, average: Any, values: Tensor, communication_type: torch.dtype) -> None:
    """The reduction of one bucket, or of one gradient that is larger: ZeRO 2 drops that as soon as this returns."""
    if values.is_cuda and values.numel() > optimizer.reduce_bucket_size:
        values.record_stream(optimizer.reduction_stream)
    average(values, communication_type)


def _finish(optimizer: DeepSpeedZeroOptimizer) -> None:
    """After a backward pass: the device waits for the last reductions where DeepSpeed lets the host wait."""
    optimizer.reduce_ipg_grads()
    if optimizer.reduction_stream is not None:
        torch.cuda.current_stream().wait_stream(optimizer.reduction_stream)
    optimizer.overlap_comm = False  # nothing is left to be reduced
    try:
        optimizer.independent_gradient_partition_epilogue()
    finally:
        optimizer.overlap_comm = True


class PipelineReduction:
    """ZeRO 1's own, in the last micro-batch of a pipeline stage; DeepSpeed has it outside pipelines alone. `begin` goes
    before the backward pass of that micro-batch. Parameters whose `id` is `held` are reduced after it.
    """

    def __init__(self, optimizer: DeepSpeedZeroOptimizer, held: Collection[int]) -> None:
        self.optimizer, self.held, self.last = optimizer, held, False
        self._process = optimizer.process_gradients
        optimizer.process_gradients = self._written
        optimizer.reduce_gradients = self._finish

    def begin(self) -> None:
        self.last = True

    def _written(self, parameter: Parameter, group: int) -> None:
        """A gradient: it is taken over, and reduced with its bucket at the boundary of a step."""
        self.optimizer.set_gradient_accumulation_boundary(self.last and id(parameter) not in self.held)
        self._process(parameter, group)

    def _finish(self, pipeline_parallel: bool) -> None:
        optimizer, self.last = self.optimizer, False
        optimizer.set_gradient_accumulation_boundary(True)
        for number, group in enumerate(optimizer.bit16_groups):
            for parameter in group:
                if id(parameter) in self.held and optimizer.get_gradient_for_reduction(parameter) is not None:
                    optimizer.reduce_ready_partitions_and_remove_grads(parameter, number)
        optimizer.overlapping_partition_gradients_reduce_epilogue()


def overlap_stage_3(module: nn.Module, optimizer: DeepSpeedZeroOptimizer_Stage3) -> None:
    """DeepSpeed sums gradients and gathers weights on two streams: what computes waits for them, not the host."""
    reducing = optimizer.reduce_and_partition_stream
    gathering = optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream
    if reducing is None:  # a CPU has none
        return
    reducing.synchronize = lambda: torch.cuda.current_stream().wait_stream(reducing)

    def weights_are_written(*_: Any) -> None:
        gathering.wait_stream(torch.cuda.current_stream())

    module.register_forward_pre_hook(weights_are_written, prepend=True)


def spare_stage_3_reads(optimizer: DeepSpeedZeroOptimizer_Stage3) -> None:
    """The norm without copies from the host, and weights that are kept whole gathered without a wait of the host."""
    optimizer._get_norm_groups = partial(_norm_groups, optimizer)
    optimizer._post_step = partial(_post_step, optimizer)


def _norm_groups(optimizer: DeepSpeedZeroOptimizer_Stage3) -> list[Tensor]:
    """Returns the norm of all gradients, reduced once; DeepSpeed reduces once for each group of parameters, in fp64."""
    owned = [
        gradient
        for number, group in enumerate(optimizer.fp16_groups)
        for parameter, gradient in zip(group, optimizer.averaged_gradients[number], strict=True)
        if is_model_parallel_parameter(parameter) or optimizer.model_parallel_rank == 0
    ]
    square = square_sum(owned) if owned else torch.zeros((), device=optimizer.device)
    dist.all_reduce(square, group=optimizer.dp_process_group)
    optimizer._model_parallel_all_reduce(square, dist.ReduceOp.SUM)
    return [square.sqrt()]


def _post_step(optimizer: DeepSpeedZeroOptimizer_Stage3, _: Any) -> None:
    kept = optimizer.persistent_parameters
    if kept:
        kept[0].all_gather_coalesced(kept).wait()
