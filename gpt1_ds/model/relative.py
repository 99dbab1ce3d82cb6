"""Relative positions: a bias of attention's scores that depends on how far a key lies from its query (Raffel et al.
2020, section 2.1). Near distances have a bucket each, farther ones share buckets of growing width.

Shapes: N heads on this rank, K buckets, S queries, T keys.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt1_ds.architecture.block import FARTHEST, RELATIVE_BUCKETS
from gpt1_ds.architecture.layer import Parameter
from gpt1_ds.model.caches import Place
from gpt1_ds.model.layers import TensorParallel, cut_parameter


class RelativeTables(nn.Module):
    """One table for each stack, [stacks, N, K]; their blocks are on other pipeline stages, so the tables travel."""

    def __init__(self, table: Parameter, tensor: TensorParallel) -> None:
        super().__init__()
        stacks, _, buckets = table.shape
        self.weight = cut_parameter(stacks, table.local_rows(tensor.size), buckets, dim=1)

    def forward(self) -> Tensor:
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return self.weight.view_as(self.weight)


def _edges(bidirectional: bool) -> tuple[int, ...]:
    """Returns where buckets 1, 2, ... of one direction begin. Whole numbers, so that every device puts a distance into
    the same bucket: a logarithm may be rounded down where it is a whole number.
    """
    buckets = RELATIVE_BUCKETS // 2 if bidirectional else RELATIVE_BUCKETS
    near = buckets // 2
    far = range(1, buckets - near)
    return (*range(1, near + 1), *(math.ceil(near * (FARTHEST / near) ** (k / (buckets - near)) - 1e-9) for k in far))


EDGES = {bidirectional: _edges(bidirectional) for bidirectional in (True, False)}


def bucket(distance_D: Tensor, bidirectional: bool) -> Tensor:
    """Returns the bucket of key minus query position. Without `bidirectional` all later keys share bucket 0; only those
    of a prefix are seen. Python's numbers alone are compared with: a tensor of them would be a copy to the device,
    which a CUDA graph cannot hold.
    """
    if not bidirectional:
        return _edges_passed((-distance_D).clamp(min=0), EDGES[False])
    later = (distance_D > 0).long() * (RELATIVE_BUCKETS // 2)
    return later + _edges_passed(distance_D.abs(), EDGES[True])


def _edges_passed(distance_D: Tensor, starts: tuple[int, ...]) -> Tensor:
    near = len(starts) // 2  # at least so many are 1, 2, 3, ...
    passed_D = distance_D.clamp(max=near)
    for start in starts[near:]:
        passed_D = passed_D + (distance_D >= start)
    return passed_D


def score_bias(table_NK: Tensor, queries: int, keys: int, bidirectional: bool, place: Place | None = None) -> Tensor:
    """Returns fp32 [N, S, T] of the last S of T positions, or of the one at `place`. The bias is the same along a
    diagonal: one product with the tables gives it for every distance, and its gradient is a sum in a fixed order.
    """
    if place is not None:
        distance_T = torch.arange(keys, device=table_NK.device) - place.column_1
        return _bias(table_NK, distance_T, bidirectional).unsqueeze(1)
    distance_D = torch.arange(1 - keys, keys, device=table_NK.device)[: queries + keys - 1]
    bias_ND = _bias(table_NK, distance_D, bidirectional)
    return diagonals(bias_ND, queries, keys) if bias_ND.is_cuda else bias_ND.unfold(1, keys, 1).flip(1)


def _bias(table_NK: Tensor, distance_D: Tensor, bidirectional: bool) -> Tensor:
    """Returns fp32 [N, D], of keys that lie so far after their query."""
    one_hot_DK = F.one_hot(bucket(distance_D, bidirectional), RELATIVE_BUCKETS).float()
    return table_NK.float() @ one_hot_DK.T


def diagonals(bias_ND: Tensor, queries: int, keys: int) -> Tensor:
    """Returns [N, S, T], as `bias_ND.unfold(1, keys, 1).flip(1)` does. Compiled blocks on a GPU use it: code with
    `unfold` would be made anew for every length, and would add up the gradient in the order in which threads come.
    """
    length = queries + keys - 1
    # rows that are one longer than what is read of them: each begins one later in the next
    longer_NR = F.pad(bias_ND.unsqueeze(1).expand(-1, queries, -1), (0, 1)).flatten(1)
    return longer_NR[:, : queries * length].view(-1, queries, length)[..., queries - 1 :]
