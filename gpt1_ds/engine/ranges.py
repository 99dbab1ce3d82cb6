"""Which elements of which parameters a rank's optimizer updates, and sums over whole parameters.

ZeRO flattens the tensor-parallel shards of a rank's parameters into one tensor and cuts it over the data-parallel ranks
at any element. Update rules that look at more than one element (Muon, LAMB, Adafactor) find their rows and columns
again here. On tensor-parallel rank 1 of 2, a weight of shape [4, 6] that is cut by columns has a shard of shape [4, 3];
a data-parallel rank whose partition holds its elements 4 to 8 has these rows and columns of the weight:

    columns   3  4  5
    row 1     .  4  5        LocalRange.row_numbers_r = [1, 2], .columns = slice(3, 6)
    row 2     6  7  8        to_block writes 0 where the dot is: that element lies on another rank

Shapes: R rows and C columns of a whole weight, r and c those of a block like this one, M matrices in a weight.
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
class ShardRange:
    """Elements [offset, offset + count) of the flattened tensor-parallel shard of a parameter."""

    info: ParameterInfo
    offset: int
    count: int

    @property
    def position(self) -> tuple[str, int, int]:
        """Where it lies in the model; copies of a range on several ranks have equal positions."""
        return self.info.name, self.info.start, self.offset


@dataclass(frozen=True)
class WholeParameter:
    """A parameter of the model, and the matrices that it is made of: a fused weight of queries, keys and values is made
    of three matrices, and its bias of three vectors.
    """

    info: ParameterInfo
    matrices: Matrices

    @property
    def matrix_elements(self) -> int:
        """Returns how many elements each of the matrices has."""
        return math.prod(self.info.shape) // self.matrices.count

    @property
    def is_matrix(self) -> bool:
        return len(self.info.shape) > 1

    @property
    def rows(self) -> int:
        """Returns R, of all matrices together; each element of a vector is a row."""
        return math.prod(self.info.shape) // self.columns

    @property
    def columns(self) -> int:
        return self.info.shape[-1] if self.is_matrix else 1

    def mean_by_matrix(self, values_R: Tensor) -> Tensor:
        """Returns [M], the mean over the rows of each matrix."""
        return values_R.view(-1, self.matrices.count, self.matrices.rows).mean((0, 2))


class LocalRange:
    """A ShardRange that this rank updates: it begins at element `start` of one of its flat tensors, and lies in the
    rows `row_numbers_r` and the slice `columns` of the whole parameter. Where several ranks hold equal copies, exactly
    one of them is `counted` in sums.
    """

    def __init__(
        self, shard_range: ShardRange, whole: WholeParameter, start: int, counted: bool, device: torch.device
    ) -> None:
        self.shard_range, self.whole, self.start, self.counted = shard_range, whole, start, counted
        info, matrices = shard_range.info, whole.matrices
        row_numbers, self.columns = np.arange(whole.rows), slice(0, whole.columns)
        if info.dim is not None and whole.is_matrix and info.dim == len(info.shape) - 1:
            self.columns = slice(info.start, info.stop)
        elif info.dim is not None:
            shape = info.shape[:-1] if whole.is_matrix else info.shape
            row_numbers = row_numbers.reshape(shape).take(range(info.start, info.stop), info.dim).reshape(-1)
        width = self.columns.stop - self.columns.start
        first, stop = shard_range.offset // width, -(-(shard_range.offset + shard_range.count) // width)
        row_numbers = row_numbers[first:stop]
        matrix_numbers = row_numbers // matrices.rows % matrices.count
        self._width = width
        self._missing = shard_range.offset - first * width  # elements of the first row that lie on another rank
        self.row_numbers_r = torch.tensor(row_numbers, device=device)
        self._matrix_numbers_r = torch.tensor(matrix_numbers, device=device)
        self._block_rows_of_matrix = [
            torch.tensor(np.flatnonzero(matrix_numbers == number), device=device) for number in range(matrices.count)
        ]

    def view(self, flat: Tensor) -> Tensor:
        """Returns this range [count] of a flat tensor: of the weights, their gradients or a moment."""
        return flat.view(-1).narrow(0, self.start, self.shard_range.count)

    def to_block(self, values: Tensor) -> Tensor:
        """Returns [r, c] with the `values` [count] in their rows and columns, and zeros elsewhere."""
        block = values.new_zeros(len(self.row_numbers_r), self._width)
        self.from_block(block).copy_(values)
        return block

    def from_block(self, block: Tensor) -> Tensor:
        """Returns the elements [count] of this range from a block [r, c]."""
        return block.reshape(-1)[self._missing : self._missing + self.shard_range.count]

    def sum_by_matrix(self, values_r: Tensor) -> Tensor:
        """Returns [M, ...], the sum over the block's rows [r, ...] of each matrix."""
        if len(self._block_rows_of_matrix) == 1:
            return values_r.sum(0, keepdim=True)
        return torch.stack([values_r.index_select(0, rows).sum(0) for rows in self._block_rows_of_matrix])

    def per_row(self, values_M: Tensor) -> Tensor:
        """Returns [r, ...], for each row of the block the value [M, ...] of its matrix."""
        return values_M[self._matrix_numbers_r]

    def per_element(self, values_M: Tensor) -> Tensor:
        """Returns [count], for each element the value [M] of its matrix; [1] where there is only one matrix."""
        if len(values_M) == 1:
            return values_M
        return self.from_block(self.per_row(values_M)[:, None].expand(-1, self._width))

    def square_sums(self, values: Tensor) -> Tensor:
        """Returns [M], the sum of the squares of this range's `values` [count] in each matrix."""
        if len(self._block_rows_of_matrix) == 1:
            return square_sum([values]).view(1)
        return self.sum_by_matrix(self.to_block(values.square()).sum(1))


@dataclass(frozen=True)
class FlatContents:
    """What a flat tensor of the optimizer is made of: its `parameters`, the same on all ranks of a pipeline stage, and
    the `ranges` of them that lie on this rank.
    """

    parameters: Sequence[WholeParameter]
    ranges: Sequence[LocalRange]


class StageSums:
    """Adds numbers up over the ranks of a pipeline stage.

    Several stages may hold a parameter, each cut at other elements, so each would round its sums differently. All take
    the sums of the first such stage, so that the copies stay the same to the bit. `copies` are the names of these
    parameters, with the process group of the ranks that hold the same of them, one for each stage.
    """

    def __init__(
        self, group: dist.ProcessGroup, copies: Sequence[tuple[dist.ProcessGroup, Collection[str]]] = ()
    ) -> None:
        self.group, self.copies = group, copies

    def all_reduce(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the sum of each parameter's `numbers`, by canonical name. They are 1-D fp32 tensors, with the same
        names and lengths on all ranks of the stage, which call this together.
        """
        sums, names = dict(numbers), list(numbers)
        if names and self.group.size() > 1:
            joined = torch.cat([sums[name] for name in names])
            dist.all_reduce(joined, group=self.group)
            _replace(sums, names, joined)
        for group, copied in self.copies:
            names_of_copies = [name for name in names if name in copied]
            if names_of_copies and group.size() > 1:
                joined = torch.cat([sums[name] for name in names_of_copies])
                dist.broadcast(joined, dist.get_process_group_ranks(group)[0], group=group)
                _replace(sums, names_of_copies, joined)
        return sums


def _replace(sums: dict[str, Tensor], names: Sequence[str], joined: Tensor) -> None:
    """Replaces the tensors of these names by the pieces of `joined`, which have the same lengths."""
    sums.update(zip(names, joined.split([len(sums[name]) for name in names]), strict=True))
