"""The reduction of BF16_Optimizer's gradients while the backward pass still computes others.

DeepSpeed's `overlap_comm` is not read by this optimizer: it sums the whole fp32 gradient over the data-parallel ranks
after the backward pass. Here a bucket is summed as soon as the last micro-batch has written all of its gradients. The
buckets are slices of the optimizer's flat gradients, so nothing is copied to be reduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter


@dataclass
class _Bucket:
    """A run of one flat gradient: `values`, of how many `parameters`, and how many of them are `missing`: the last
    micro-batch has yet to write their gradients.
    """

    values: Tensor
    parameters: int
    missing: int = 0
    work: Any = None


class OverlappedReduction:
    """Of one rank. `begin` goes before the backward pass of a step's last micro-batch, `finish` after it."""

    def __init__(self, optimizer: Any, group: dist.ProcessGroup, elements: int) -> None:
        self.optimizer, self.group = optimizer, group
        self.buckets: list[_Bucket] = []
        flats = zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients_flat, strict=True)
        for number, (parameters, flat) in enumerate(flats):
            starts = cuts([parameter.numel() for parameter in parameters], elements)
            for (first, start), (last, stop) in zip(starts, [*starts[1:], (len(parameters), len(flat))], strict=True):
                bucket = _Bucket(flat[start:stop], last - first)
                self.buckets.append(bucket)
                for index in range(first, last):
                    self._watch(parameters[index], number, index, bucket)

    def begin(self) -> None:
        for bucket in self.buckets:
            bucket.missing = bucket.parameters

    def finish(self, **_: Any) -> None:
        """All gradients are means over the ranks now: in the order of the device's work, the host does not wait."""
        for bucket in self.buckets:
            if bucket.work is None:  # nothing flowed into one of its parameters
                self._reduce(bucket)
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.work, bucket.missing = None, 0
            bucket.values.mul_(1.0 / self.group.size())

    def _watch(self, parameter: Parameter, group: int, index: int, bucket: _Bucket) -> None:
        def written(_: Tensor) -> None:
            if bucket.missing == 0:
                return
            self.optimizer._update_hp_grad(parameter, group, index, clear_lp_grads=False)
            bucket.missing -= 1
            if bucket.missing == 0:
                self._reduce(bucket)

        parameter.register_post_accumulate_grad_hook(written)

    def _reduce(self, bucket: _Bucket) -> None:
        bucket.work = dist.all_reduce(bucket.values, group=self.group, async_op=True)


def cuts(sizes: list[int], elements: int) -> list[tuple[int, int]]:
    """(first parameter, first element) of buckets of at least `elements`, the last one excepted."""
    cuts, at, begun = [(0, 0)], 0, 0
    for index, size in enumerate(sizes):
        if at - begun >= elements:
            cuts.append((index, at))
            begun = at
        at += size
    return cuts
