"""The reduction of gradients over data-parallel ranks while the backward pass still computes others, on CUDA.

DeepSpeed does that by itself under ZeRO 2 and 3 and, outside pipelines, under ZeRO 1 in fp32 and fp16
(zero.py). BF16_Optimizer and ZeRO 0 reduce after the backward pass: here a bucket is summed as soon as the last
micro-batch has written all of its gradients. The sums are those of DeepSpeed, in other messages: equal to the bit on
two ranks; on more, NCCL's order of additions depends on where an element lies in its message. (Its ReduceOp.AVG would
give means, but not within NVLink's switches.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import Parameter

from gpt1_ds.config.parallel import BUCKET_ELEMENTS
from gpt1_ds.engine.deepspeed.bf16 import expect_sums
from gpt1_ds.engine.deepspeed.zero import PipelineReduction, overlap_stage_3, overlap_stages_1_and_2
from gpt1_ds.model.proof import proven


class Reduction(Protocol):
    def begin(self) -> None:
        """Is called before the backward pass of a step's last micro-batch."""


def overlaps(device: torch.device) -> bool:
    """Returns whether gradients are reduced during the backward pass. On CUDA the reduction has a stream of its own; on
    a CPU it would take the cores of the backward pass. ZeRO 3 overlaps by DeepSpeed's own means, proven or not.
    """
    return proven(device)


def overlap(
    engine: DeepSpeedEngine, device: torch.device, group: dist.ProcessGroup, tied: Collection[Parameter] = ()
) -> Reduction | None:
    """Lets this DeepSpeed engine overlap on `device`. Returns the reduction whose `begin` has to be called; None where
    DeepSpeed needs no call, or nothing overlaps. Gradients of `tied` weights are reduced after the backward pass:
    before that they are summed over pipeline stages.
    """
    optimizer, held = engine.optimizer, {id(parameter) for parameter in tied}
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        overlap_stage_3(engine.module, optimizer)
        return None
    if group.size() == 1 or not overlaps(device):
        return None
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        if not optimizer.contiguous_gradients:  # then no hook may run when a gradient is written
            return None
        overlap_stages_1_and_2(optimizer)
        return PipelineReduction(optimizer, held) if engine.pipeline_parallelism else None
    reduction = (
        FlatReduction(optimizer, group, BUCKET_ELEMENTS, held)
        if isinstance(optimizer, BF16_Optimizer)
        else GradientReduction(engine.module, group, BUCKET_ELEMENTS)
    )
    engine.buffered_allreduce_fallback = reduction.finish
    return reduction


@dataclass
class _Bucket:
    """Gradients that are reduced in one message, `values`; `missing` of them the last micro-batch has yet to write. A
    bucket that is not `early` is reduced after the backward pass.
    """

    parameters: Sequence[Parameter]
    values: Tensor | None = None
    early: bool = True
    missing: int = 0
    work: Any = None


class OverlappedReduction(ABC):
    """Reduces the gradients of one rank: `begin` goes before the last backward pass of a step, `finish` after it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.buckets: list[_Bucket] = []

    def begin(self) -> None:
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def finish(self, **_: Any) -> None:
        """Makes all buckets sums over the ranks, in the order of the device's work: the host does not wait."""
        for bucket in self.buckets:
            if bucket.work is None:  # not early, or nothing flowed into one of its parameters
                self._reduce(bucket)
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.work, bucket.missing = None, 0

    def forget(self) -> None:
        """Drops the reductions under way, after a backward pass that ended with an error."""
        for bucket in self.buckets:
            bucket.work, bucket.missing = None, 0

    def _watch(self, bucket: _Bucket) -> None:
        def written(_: Tensor) -> None:
            if bucket.missing == 0:
                return
            bucket.missing -= 1
            if bucket.missing == 0 and bucket.early:
                self._reduce(bucket)

        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(written)
        self.buckets.append(bucket)

    def _reduce(self, bucket: _Bucket) -> None:
        bucket.values = self._values(bucket)
        bucket.work = dist.all_reduce(bucket.values, group=self.group, async_op=True)

    @abstractmethod
    def _values(self, bucket: _Bucket) -> Tensor:
        """Returns the bucket's gradients in one tensor."""


class FlatReduction(OverlappedReduction):
    """The reduction of BF16_Optimizer: buckets are slices of its flat gradients, so nothing is copied to be reduced.
    They stay sums: the update divides.
    """

    def __init__(
        self, optimizer: BF16_Optimizer, group: dist.ProcessGroup, elements: int, held: Collection[int]
    ) -> None:
        super().__init__(group)
        expect_sums(optimizer, group.size())
        self.take_over = optimizer.take_over
        self.places: dict[int, tuple[int, range]] = {}  # of a bucket: its group, its parameters' numbers there
        flats = zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients_flat, strict=True)
        for number, (parameters, flat) in enumerate(flats):
            alone = {index for index, parameter in enumerate(parameters) if id(parameter) in held}
            starts = cuts([parameter.numel() for parameter in parameters], elements, alone)
            for (first, start), (last, stop) in zip(starts, [*starts[1:], (len(parameters), len(flat))], strict=True):
                bucket = _Bucket(parameters[first:last], flat[start:stop], first not in alone)
                self.places[id(bucket)] = number, range(first, last)
                self._watch(bucket)

    def _values(self, bucket: _Bucket) -> Tensor:
        assert bucket.values is not None, "a slice"
        self.take_over(*self.places[id(bucket)])
        return bucket.values


class GradientReduction(OverlappedReduction):
    """The reduction of ZeRO 0: gradients are copied into buckets and stay there. Buckets begin with the last layers."""

    def __init__(self, module: torch.nn.Module, group: dist.ProcessGroup, elements: int) -> None:
        super().__init__(group)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad][::-1]
        starts = [first for first, _ in cuts([parameter.numel() for parameter in parameters], elements)]
        for first, last in zip(starts, [*starts[1:], len(parameters)], strict=True):
            self._watch(_Bucket(parameters[first:last]))

    def finish(self, **_: Any) -> None:
        super().finish()
        for bucket in self.buckets:
            assert bucket.values is not None, "it is reduced"
            bucket.values.mul_(1.0 / self.group.size())
            bucket.values = None  # the gradients keep it

    def _values(self, bucket: _Bucket) -> Tensor:
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket.parameters]
        values: Tensor = _flatten_dense_tensors(gradients)
        for parameter, gradient in zip(bucket.parameters, _unflatten_dense_tensors(values, gradients), strict=True):
            parameter.grad = gradient
        return values


def cuts(sizes: list[int], elements: int, alone: Collection[int] = ()) -> list[tuple[int, int]]:
    """Returns (first parameter, first element) of buckets of at least `elements`, the last one excepted. The parameters
    whose numbers are in `alone` have buckets of their own.
    """
    cuts, at, bucket_start = [(0, 0)], 0, 0
    for index, size in enumerate(sizes):
        if at > bucket_start and (at - bucket_start >= elements or index in alone or index - 1 in alone):
            cuts.append((index, at))
            bucket_start = at
        at += size
    return cuts
