"""Muon's step for weights whose shards lie on many ranks (Jordan et al. 2024; scaled as by Liu et al. 2025).

Newton-Schulz needs whole matrices, so each weight has one rank of its stage as owner. Per step:

    1. every rank sends its ranges of a weight's mean gradient to the weight's owner       (all-to-all)
    2. the owner puts the weight together and orthogonalises its matrices
    3. the owner sends every rank the ranges of the result that the rank updates           (all-to-all)

So each matrix is computed once, in fp32, from the same numbers in the same shape on every layout, and all copies of it
are the same to the bit. The owners share the work out, the largest weights first; every rank computes them by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.architecture.layer import Matrices
from gpt1_ds.config.sections import NEWTON_SCHULZ_STEPS
from gpt1_ds.engine.adamw import MOMENTS, AdamW
from gpt1_ds.engine.ranges import FlatContents, LocalRange, ShardRange, StageSums
from gpt1_ds.model.names import ParameterInfo

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
RMS = 0.2  # of an update's elements at a rate of 1, about that of AdamW's: the two share rate and decay
_SMALLEST = 1e-7  # norm: a matrix of zeros stays one


def orthogonalise(matrix_RC: Tensor) -> Tensor:
    """Returns U S V^T [R, C], where U and V are the singular vectors of the matrix and S lies around 1: the quintic
    Newton-Schulz iteration. torch's own (torch.optim.Muon) rounds to bf16.
    """
    a, b, c = COEFFICIENTS
    is_tall = len(matrix_RC) > matrix_RC.shape[1]
    x = matrix_RC.T if is_tall else matrix_RC
    x = x / torch.linalg.vector_norm(x).clamp(min=_SMALLEST)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def update_direction(weight_RC: Tensor, matrices: Matrices) -> Tensor:
    """Returns [R, C]: each matrix that the weight's rows are made of, orthogonalised by itself and scaled to RMS."""
    columns = weight_RC.shape[1]
    fused = weight_RC.view(-1, matrices.count, matrices.rows, columns)
    directions = torch.empty_like(fused)
    for number in range(matrices.count):
        matrix = fused[:, number].reshape(-1, columns)
        scale = RMS * math.sqrt(max(matrix.shape))
        directions[:, number] = (orthogonalise(matrix) * scale).view(-1, matrices.rows, columns)
    return directions.view(-1, columns)


def assign_owners(weights: Iterable[ParameterInfo], ranks: int) -> dict[str, int]:
    """Returns the rank that orthogonalises each weight, by canonical name: always the one with least work so far."""
    work_of_rank, owners = [0] * ranks, {}
    for weight in sorted(weights, key=lambda weight: (-_work(weight), weight.name)):
        rank = work_of_rank.index(min(work_of_rank))
        work_of_rank[rank] += _work(weight)
        owners[weight.name] = rank
    return owners


def _work(weight: ParameterInfo) -> int:
    """Returns the work of Newton-Schulz, up to a constant factor."""
    assert weight.matrices is not None, "only matrices are orthogonalised"
    sides = weight.shape[0] // weight.matrices.count, weight.shape[1]
    return weight.matrices.count * min(sides) * math.prod(sides)


class Exchange:
    """Orthogonalises weights whose ranges lie on the ranks of `group`; `local` are the ranges of this rank. All ranks
    make one and call it together. A range is known by its rank and its index in `ranges[rank]`.
    """

    def __init__(self, local: Sequence[ShardRange], group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.ranks, self.rank = group, range(group.size()), group.rank()
        self.device = device
        self.ranges: list[list[ShardRange]] = [list(local) for _ in self.ranks]
        if len(self.ranks) > 1:
            dist.all_gather_object(self.ranges, list(local), group=group)
        weights = {one.info.name: one.info for ranges in self.ranges for one in ranges}
        self.owners = assign_owners(weights.values(), len(self.ranks))
        self.holders: dict[tuple[str, int, int], list[int]] = {}  # position of a range -> the ranks that hold a copy
        for rank, ranges in enumerate(self.ranges):
            for one in ranges:
                self.holders.setdefault(one.position, []).append(rank)

    def directions(self, means: Sequence[Tensor]) -> list[Tensor]:
        """Returns the update directions of this rank's ranges from their mean gradients: 1-D fp32 [count] each."""
        to_owners = [[means[index] for index in self._sent(self.rank, owner)] for owner in self.ranks]
        from_ranks = [self._counts(rank, self._sent(rank, self.rank)) for rank in self.ranks]
        directions = self._owned_directions(self._all_to_all(to_owners, from_ranks))
        to_ranks = [
            [_take(directions[one.info.name], one) for one in self.ranges[rank] if self._owner(one) == self.rank]
            for rank in self.ranks
        ]
        wanted = [self._owned_by(owner, self.rank) for owner in self.ranks]
        received = self._all_to_all(to_ranks, [self._counts(self.rank, indices) for indices in wanted])
        by_index: dict[int, Tensor] = {}
        for indices, tensors in zip(wanted, received, strict=True):
            by_index.update(zip(indices, tensors, strict=True))
        return [by_index[index] for index in range(len(means))]

    def _owner(self, one: ShardRange) -> int:
        return self.owners[one.info.name]

    def _owned_by(self, owner: int, rank: int) -> list[int]:
        """Returns the indices of those ranges of `rank` whose weights belong to `owner`."""
        return [index for index, one in enumerate(self.ranges[rank]) if self._owner(one) == owner]

    def _sent(self, rank: int, owner: int) -> list[int]:
        """Returns the indices of the ranges that `rank` sends to `owner`. Of equal copies only one is sent: the owner's
        own if it holds one, else that of the first rank.
        """

        def is_sent(index: int) -> bool:
            holders = self.holders[self.ranges[rank][index].position]
            return rank == (owner if owner in holders else holders[0])

        return [index for index in self._owned_by(owner, rank) if is_sent(index)]

    def _counts(self, rank: int, indices: Sequence[int]) -> list[int]:
        return [self.ranges[rank][index].count for index in indices]

    def _owned_directions(self, received: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Returns the direction [R, C] of each weight that this rank owns, by name; `received[rank]` are the mean
        gradients that a rank sent.
        """
        pieces: dict[str, list[tuple[ShardRange, Tensor]]] = {}
        for rank, tensors in zip(self.ranks, received, strict=True):
            for index, values in zip(self._sent(rank, self.rank), tensors, strict=True):
                one = self.ranges[rank][index]
                pieces.setdefault(one.info.name, []).append((one, values))
        directions = {}
        for name, ranges in pieces.items():
            matrices = ranges[0][0].info.matrices
            assert matrices is not None, "only matrices are orthogonalised"
            directions[name] = update_direction(_put_together(ranges), matrices)
        return directions

    def _all_to_all(self, tensors: Sequence[Sequence[Tensor]], counts: Sequence[Sequence[int]]) -> list[list[Tensor]]:
        """Sends `tensors[rank]` to each rank; returns what each rank sent, fp32 tensors of `counts[rank]` elements."""
        if len(self.ranks) == 1:
            return [list(tensors[0])]
        sent = torch.cat([torch.empty(0, device=self.device), *(one for several in tensors for one in several)])
        received = torch.empty(sum(map(sum, counts)), device=self.device)
        sent_counts = [sum(len(one) for one in several) for several in tensors]
        dist.all_to_all_single(received, sent, [sum(several) for several in counts], sent_counts, group=self.group)
        pieces = iter(received.split([count for several in counts for count in several]))
        return [[next(pieces) for _ in several] for several in counts]


def _put_together(pieces: Iterable[tuple[ShardRange, Tensor]]) -> Tensor:
    """Returns a weight [R, C] from all of its ranges: ranges become shards, and shards the weight."""
    shards: dict[ParameterInfo, list[Tensor]] = {}  # tensor-parallel shard -> its ranges in order
    for one, values in sorted(pieces, key=lambda piece: piece[0].position):
        shards.setdefault(one.info, []).append(values)
    dim = next(iter(shards)).dim or 0
    return torch.cat([torch.cat(ranges).view(info.local_shape) for info, ranges in shards.items()], dim)


def _take(weight_RC: Tensor, one: ShardRange) -> Tensor:
    """Returns the elements [count] of a range from the whole weight."""
    info = one.info
    shard = weight_RC if info.dim is None else weight_RC.narrow(info.dim, info.start, info.stop - info.start)
    return shard.reshape(-1)[one.offset : one.offset + one.count]


class Muon(AdamW):
    """AdamW, but in groups that are `orthogonal` it orthogonalises the gradients' running mean with Nesterov's step
    ahead. `lr` and the decoupled decay mean what they mean in AdamW.

        m  = momentum * m + (1 - momentum) * g
        p -= lr * (update_direction(momentum * m + (1 - momentum) * g) + weight_decay * p)
    """

    def __init__(self, params: Iterable[Any], momentum: float, **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.momentum = momentum
        self.ranges: Mapping[Tensor, Sequence[LocalRange]] = {}  # of the flat tensors with weights to orthogonalise
        self.group: dist.ProcessGroup | None = None
        self._exchanges: dict[tuple[int, ...], Exchange] = {}  # by the ids of the tensors that are updated together

    def connect(self, contents: Mapping[Tensor, FlatContents], sums: StageSums) -> None:
        """Sets, before the first update, what the flat tensors are made of and which ranks hold the rest."""
        self.ranges = {
            flat: one.ranges
            for flat, one in contents.items()
            if any(whole.info.matrices is not None for whole in one.parameters)
        }
        self.group = sums.group

    def moments(self, flat: Tensor) -> Sequence[str]:
        return MOMENTS[:1] if flat in self.ranges else MOMENTS

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            flats = [flat for flat in group["params"] if flat.grad is not None]
            if group["orthogonal"] and flats:
                self._update_matrices(flats, group)

    def _update_matrices(self, flats: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Updates flat tensors of matrices. On CUDA a step may be skipped on the device: then its gradients count as 0,
        and `applied` is 0.
        """
        applied = self._applied
        means = {flat: self._advance_mean(flat, applied) for flat in flats}
        local = [(flat, one) for flat in flats for one in self.ranges.get(flat, ())]
        exchange = self._exchange(flats, [one.shard_range for _, one in local])
        directions = exchange.directions([one.view(means[flat]) for flat, one in local])
        for flat in flats:
            flat.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
        for (flat, one), direction in zip(local, directions, strict=True):
            one.view(flat).sub_(direction.mul_(group["lr"] * applied))
        for flat in flats:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    def _advance_mean(self, flat: Tensor, applied: float | Tensor) -> Tensor:
        """Takes the gradient into the running mean; returns the mean with Nesterov's step ahead, a new 1-D tensor."""
        assert flat.grad is not None, "it has one"
        state, gradient = self.state[flat], self._read(flat.grad.view(-1))
        if not state:
            state.update(self.fresh_state(flat, 0))
        state["step"] += applied
        mean: Tensor = state["exp_avg"].view(-1).lerp_(gradient, (1 - self.momentum) * applied)
        return gradient.lerp(mean, self.momentum)

    def _exchange(self, flats: Sequence[Tensor], local: Sequence[ShardRange]) -> Exchange:
        key = tuple(map(id, flats))
        if key not in self._exchanges:
            assert self.group is not None, "it is connected before"
            self._exchanges[key] = Exchange(local, self.group, flats[0].device)
        return self._exchanges[key]
