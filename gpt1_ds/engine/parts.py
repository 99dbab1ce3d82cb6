"""Parts of parameters as they lie on the ranks, and sums over whole parameters: update rules need them that look at
more than one element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.model.names import ParameterInfo


@dataclass(frozen=True)
class Part:
    """Elements [offset, offset + count) of a rank's flattened tensor-parallel part of a parameter."""

    info: ParameterInfo
    offset: int
    count: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Equal for copies."""
        return self.info.name, self.info.start, self.offset

    @property
    def block(self) -> tuple[slice, slice, int]:
        """Of a matrix: the (rows, columns) in which the part lies, and how many elements of them come before it."""
        width = self.info.local_shape[1]
        first, last = self.offset // width, -(-(self.offset + self.count) // width)
        down, right = (self.info.start if self.info.dim == dim else 0 for dim in (0, 1))
        return slice(down + first, down + last), slice(right, right + width), self.offset - first * width


@dataclass(frozen=True)
class Placed:
    """A part that begins at element `start` of a flat tensor, of that tensor's parameter `number`. Of equal copies on
    several ranks one is `counted` in a sum.
    """

    part: Part
    number: int
    start: int
    counted: bool

    def of(self, flat: Tensor) -> Tensor:
        """Returns the view [count] of such a tensor."""
        return flat.view(-1).narrow(0, self.start, self.part.count)


@dataclass(frozen=True)
class Flat:
    """What a tensor is made of that an optimizer updates: `parameters`, the same on all ranks of a stage, and the parts
    of them that lie here.
    """

    parameters: Sequence[ParameterInfo]
    parts: Sequence[Placed]

    @classmethod
    def whole(cls, info: ParameterInfo) -> Flat:
        """A parameter that lies here in one piece."""
        return cls([info], [Placed(Part(info, 0, math.prod(info.shape)), 0, 0, True)])


class Sums:
    """Adds numbers up over the ranks of a stage.

    A parameter that several stages hold is cut otherwise on each of them, and its sums are rounded otherwise: all take
    those of the first stage, so that its copies stay the same to the bit. `copies` are the names of such parameters
    with the ranks of this place on each of the stages.
    """

    def __init__(
        self, group: dist.ProcessGroup, copies: Sequence[tuple[dist.ProcessGroup, Collection[str]]] = ()
    ) -> None:
        self.group, self.copies = group, copies

    def over_ranks(self, names: Sequence[str], numbers: Sequence[Tensor]) -> list[Tensor]:
        """Returns the sums of each parameter's `numbers`, 1-D fp32 tensors that have the same lengths on all ranks of
        the stage. They call this together.
        """
        if not numbers:
            return []
        joined = torch.cat(list(numbers))
        if self.group.size() > 1:
            dist.all_reduce(joined, group=self.group)
        sums = list(joined.split([len(one) for one in numbers]))
        for group, known in self.copies:
            same = [number for number, name in enumerate(names) if name in known]
            if same:
                first = torch.cat([sums[number] for number in same])
                dist.broadcast(first, dist.get_process_group_ranks(group)[0], group=group)
                values = first.split([len(sums[number]) for number in same])
                for number, value in zip(same, values, strict=True):
                    sums[number] = value
        return sums
