"""Parts of parameters as they lie on the ranks, and sums over whole parameters: update rules need them that look at
more than one element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.architecture.layer import Matrices
from gpt1_ds.engine.gradient_norm import square_sum
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


@dataclass(frozen=True)
class Whole:
    """A parameter, and the matrices that it is made of: queries, keys and values are three, and their bias is made of
    three vectors.
    """

    info: ParameterInfo
    matrices: Matrices

    @property
    def elements(self) -> int:
        """Returns how many elements each of the matrices has."""
        return math.prod(self.info.shape) // self.matrices.count

    @property
    def is_matrix(self) -> bool:
        return len(self.info.shape) > 1

    @property
    def rows(self) -> int:
        """Returns how many there are of all matrices together; each element of a vector is one."""
        return math.prod(self.info.shape) // self.columns

    @property
    def columns(self) -> int:
        return self.info.shape[-1] if self.is_matrix else 1

    def means(self, rows_R: Tensor) -> Tensor:
        """[M]: the mean of each matrix's rows."""
        return rows_R.view(-1, self.matrices.count, self.matrices.rows).mean((0, 2))


class Placed:
    """A part that begins at element `start` of a flat tensor. Of equal copies on several ranks one is `counted` in a
    sum. It lies in the `rows_r` (their numbers) and the slice `columns` of the whole parameter.
    """

    def __init__(self, part: Part, whole: Whole, start: int, counted: bool, device: torch.device) -> None:
        self.part, self.whole, self.start, self.counted = part, whole, start, counted
        info, matrices = part.info, whole.matrices
        rows, self.columns = np.arange(whole.rows), slice(0, whole.columns)
        if info.dim is not None and whole.is_matrix and info.dim == len(info.shape) - 1:
            self.columns = slice(info.start, info.stop)
        elif info.dim is not None:
            shape = info.shape[:-1] if whole.is_matrix else info.shape
            rows = rows.reshape(shape).take(range(info.start, info.stop), info.dim).reshape(-1)
        width = self.columns.stop - self.columns.start
        first, last = part.offset // width, -(-(part.offset + part.count) // width)
        self._before = part.offset - first * width  # elements of the first row that lie elsewhere
        rows = rows[first:last]
        matrix_r = rows // matrices.rows % matrices.count
        self.rows_r, self._matrix_r = (torch.tensor(numbers, device=device) for numbers in (rows, matrix_r))
        self._rows_M = [
            torch.tensor(np.flatnonzero(matrix_r == matrix), device=device) for matrix in range(matrices.count)
        ]

    def of(self, flat: Tensor) -> Tensor:
        """Returns the view [count] of such a tensor."""
        return flat.view(-1).narrow(0, self.start, self.part.count)

    def block(self, values: Tensor) -> Tensor:
        """[r, c]: the part's values [count] at their places, and zeros."""
        block = values.new_zeros(len(self.rows_r), self.columns.stop - self.columns.start)
        block.view(-1)[self._before : self._before + self.part.count] = values
        return block

    def cut(self, block: Tensor) -> Tensor:
        """[count]: the part of [r, c]."""
        return block.reshape(-1)[self._before : self._before + self.part.count]

    def by_matrix(self, values_r: Tensor) -> Tensor:
        """[M, ...]: sums of the rows [r, ...] of each matrix."""
        if len(self._rows_M) == 1:
            return values_r.sum(0, keepdim=True)
        return torch.stack([values_r.index_select(0, rows).sum(0) for rows in self._rows_M])

    def of_rows(self, numbers_M: Tensor) -> Tensor:
        """[r, ...]: to each row what is its matrix's of [M, ...]."""
        return numbers_M[self._matrix_r]

    def spread(self, numbers_M: Tensor) -> Tensor:
        """[count], or [1] where all have the same: to each element the number of its matrix."""
        if len(numbers_M) == 1:
            return numbers_M
        return self.cut(self.of_rows(numbers_M)[:, None].expand(-1, self.columns.stop - self.columns.start))

    def square_sums(self, values: Tensor) -> Tensor:
        """[M]: of the part's values [count] in each matrix."""
        if len(self._rows_M) == 1:
            return square_sum([values]).view(1)
        return self.by_matrix(self.block(values.square()).sum(1))


@dataclass(frozen=True)
class Flat:
    """What a tensor is made of that an optimizer updates: `parameters`, the same on all ranks of a stage, and the parts
    of them that lie here.
    """

    parameters: Sequence[Whole]
    parts: Sequence[Placed]


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

    def over_ranks(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the sums of each parameter's `numbers`, by canonical name: 1-D fp32 tensors that have the same names
        and lengths on all ranks of the stage. They call this together.
        """
        sums, names = dict(numbers), list(numbers)
        if names and self.group.size() > 1:
            joined = torch.cat([sums[name] for name in names])
            dist.all_reduce(joined, group=self.group)
            _split(joined, names, sums)
        for group, known in self.copies:
            same = [name for name in names if name in known]
            if same and group.size() > 1:
                joined = torch.cat([sums[name] for name in same])
                dist.broadcast(joined, dist.get_process_group_ranks(group)[0], group=group)
                _split(joined, same, sums)
        return sums


def _split(joined: Tensor, names: Sequence[str], sums: dict[str, Tensor]) -> None:
    """Put each name's part of `joined` into `sums`, in the place of what has its length there."""
    sums.update(zip(names, joined.split([len(sums[name]) for name in names]), strict=True))
