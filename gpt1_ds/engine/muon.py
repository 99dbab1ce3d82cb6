"""Muon's step for weights that lie in parts on many ranks (Jordan et al. 2024; scaled as by Liu et al. 2025).

Newton-Schulz needs whole matrices. Every rank sends its parts of a weight to the one rank that owns it, which puts the
weight together, orthogonalises its matrices and sends each part back. So each matrix is computed once, in fp32, from
the same numbers in the same shape on every layout, and all copies of it are the same to the bit. Owners are chosen by
work, the largest weights first; every rank knows them without asking.
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
from gpt1_ds.engine.parts import Flat, Part, Placed, Sums
from gpt1_ds.model.names import ParameterInfo

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
RMS = 0.2  # of an update's elements at a rate of 1, about that of AdamW's: the two share rate and decay
_SMALLEST = 1e-7  # norm: a matrix of zeros stays one


def orthogonal(matrix_RC: Tensor) -> Tensor:
    """[R, C] -> U S V^T of the same shape, where U and V are the singular vectors and S lies around 1: the quintic
    Newton-Schulz iteration. torch's own (torch.optim.Muon) rounds to bf16.
    """
    a, b, c = COEFFICIENTS
    x = matrix_RC.T if len(matrix_RC) > matrix_RC.shape[1] else matrix_RC
    x = x / torch.linalg.vector_norm(x).clamp(min=_SMALLEST)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if len(matrix_RC) > matrix_RC.shape[1] else x


def direction(weight_RC: Tensor, matrices: Matrices) -> Tensor:
    """[R, C] -> [R, C]: each of the matrices that a weight's rows are made of orthogonalised by itself, and scaled."""
    columns = weight_RC.shape[1]
    parts = weight_RC.view(-1, matrices.count, matrices.rows, columns)
    result = torch.empty_like(parts)
    for number in range(matrices.count):
        one = parts[:, number].reshape(-1, columns)
        result[:, number] = (orthogonal(one) * (RMS * math.sqrt(max(one.shape)))).view(-1, matrices.rows, columns)
    return result.view(-1, columns)


def owners(weights: Iterable[ParameterInfo], ranks: int) -> dict[str, int]:
    """Canonical name -> the rank that orthogonalises it: always the one with least work so far."""
    busy, found = [0] * ranks, {}
    for weight in sorted(weights, key=lambda one: (-_work(one), one.name)):
        rank = busy.index(min(busy))
        busy[rank] += _work(weight)
        found[weight.name] = rank
    return found


def _work(weight: ParameterInfo) -> int:
    """Returns the work of Newton-Schulz, up to a factor."""
    assert weight.matrices is not None, "it has matrices"
    sides = weight.shape[0] // weight.matrices.count, weight.shape[1]
    return weight.matrices.count * min(sides) * math.prod(sides)


class Exchange:
    """Brings together weights whose parts lie on the ranks of `group`; `here` are this rank's. All ranks make one and
    use it together.
    """

    def __init__(self, here: Sequence[Part], group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.ranks, self.me = group, range(group.size()), group.rank()
        self.nothing = torch.empty(0, device=device)
        self.parts: list[list[Part]] = [list(here) for _ in self.ranks]
        if len(self.ranks) > 1:
            dist.all_gather_object(self.parts, list(here), group=group)
        self.owners = owners(
            {part.info.name: part.info for parts in self.parts for part in parts}.values(), len(self.ranks)
        )
        self.holders: dict[tuple[str, int, int], list[int]] = {}
        for rank, parts in enumerate(self.parts):
            for part in parts:
                self.holders.setdefault(part.place, []).append(rank)

    def directions(self, means: Sequence[Tensor]) -> list[Tensor]:
        """Returns what this rank's parts go along, 1-D fp32 [count] each, from their mean gradients of the same
        lengths.
        """
        given = [[means[number] for number in self._given(self.me, owner)] for owner in self.ranks]
        arrived = self._swap(given, [self._sizes(rank, self._given(rank, self.me)) for rank in self.ranks])
        wholes = self._wholes(arrived)
        del arrived
        cut = [
            [_cut(wholes[part.info.name], part) for part in self.parts[rank] if self.owners[part.info.name] == self.me]
            for rank in self.ranks
        ]
        mine = [self._owned(self.me, owner) for owner in self.ranks]
        results = self._swap(cut, [self._sizes(self.me, numbers) for numbers in mine])
        found = dict(zip((n for numbers in mine for n in numbers), (r for part in results for r in part), strict=True))
        return [found[number] for number in range(len(means))]

    def _owned(self, rank: int, owner: int) -> list[int]:
        """Numbers of a rank's parts of the weights of `owner`."""
        return [n for n, part in enumerate(self.parts[rank]) if self.owners[part.info.name] == owner]

    def _given(self, rank: int, owner: int) -> list[int]:
        """Returns the numbers of the parts that `rank` sends to `owner`. Of copies the owner takes its own, else the
        first rank's.
        """

        def gives(part: Part) -> bool:
            holders = self.holders[part.place]
            return rank == (owner if owner in holders else holders[0])

        return [number for number in self._owned(rank, owner) if gives(self.parts[rank][number])]

    def _sizes(self, rank: int, numbers: Sequence[int]) -> list[int]:
        return [self.parts[rank][number].count for number in numbers]

    def _wholes(self, arrived: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Name -> direction [R, C] of the weights that this rank owns."""
        pieces: dict[str, list[tuple[Part, Tensor]]] = {}
        for rank, values in zip(self.ranks, arrived, strict=True):
            for number, value in zip(self._given(rank, self.me), values, strict=True):
                part = self.parts[rank][number]
                pieces.setdefault(part.info.name, []).append((part, value))
        wholes = {}
        for name, found in pieces.items():
            matrices = found[0][0].info.matrices
            assert matrices is not None, "it has matrices"
            wholes[name] = direction(_joined(found), matrices)
        return wholes

    def _swap(self, given: Sequence[Sequence[Tensor]], sizes: Sequence[Sequence[int]]) -> list[list[Tensor]]:
        """Send each rank its tensors; receive from each rank tensors of these sizes."""
        if len(self.ranks) == 1:
            return [list(given[0])]
        sent = torch.cat([self.nothing, *(value for values in given for value in values)])
        received = torch.empty(sum(map(sum, sizes)), device=sent.device)
        counts = [sum(len(value) for value in values) for values in given]
        dist.all_to_all_single(received, sent, [sum(numbers) for numbers in sizes], counts, group=self.group)
        values = iter(received.split([size for numbers in sizes for size in numbers]))
        return [[next(values) for _ in numbers] for numbers in sizes]


def _joined(pieces: Iterable[tuple[Part, Tensor]]) -> Tensor:
    """[R, C] of all parts of a weight."""
    blocks: dict[ParameterInfo, list[Tensor]] = {}  # of each tensor-parallel rank
    for part, value in sorted(pieces, key=lambda piece: piece[0].place):
        blocks.setdefault(part.info, []).append(value)
    dim = next(iter(blocks)).dim or 0
    return torch.cat([torch.cat(values).view(info.local_shape) for info, values in blocks.items()], dim)


def _cut(whole_RC: Tensor, part: Part) -> Tensor:
    info = part.info
    here = whole_RC if info.dim is None else whole_RC.narrow(info.dim, info.start, info.stop - info.start)
    return here.reshape(-1)[part.offset : part.offset + part.count]


class Muon(AdamW):
    """AdamW but for the groups that are `orthogonal`: there the gradients' running mean, with Nesterov's step ahead, is
    made orthogonal. `lr` and the decoupled decay are AdamW's.

        m  = momentum * m + (1 - momentum) * g
        p -= lr * (direction(momentum * m + (1 - momentum) * g) + weight_decay * p)
    """

    def __init__(self, params: Iterable[Any], momentum: float, **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.momentum = momentum
        self.parts: Mapping[Tensor, Sequence[Placed]] = {}
        self.group: dist.ProcessGroup | None = None
        self._exchanges: dict[tuple[int, ...], Exchange] = {}  # by the ids of the tensors that are updated together

    def connect(self, flats: Mapping[Tensor, Flat], sums: Sums) -> None:
        """Before the first update: what the tensors are made of, and the ranks that hold the rest."""
        self.parts = {
            flat: one.parts
            for flat, one in flats.items()
            if any(whole.info.matrices is not None for whole in one.parameters)
        }
        self.group = sums.group

    def moments(self, flat: Tensor) -> Sequence[str]:
        return MOMENTS[:1] if flat in self.parts else MOMENTS

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
        """On CUDA a step may be left out on the device: its gradients count as 0, `applied` is 0."""
        applied = self._applied
        means = {flat: self._mean(flat, applied) for flat in flats}
        held = [(flat, placed) for flat in flats for placed in self.parts.get(flat, ())]
        values = [placed.of(means[flat]) for flat, placed in held]
        directions = self._exchange(flats, [placed.part for _, placed in held]).directions(values)
        for flat in flats:
            flat.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
        for (flat, placed), along in zip(held, directions, strict=True):
            placed.of(flat).sub_(along.mul_(group["lr"] * applied))
        for flat in flats:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    def _mean(self, flat: Tensor, applied: float | Tensor) -> Tensor:
        """1-D, of a new tensor."""
        assert flat.grad is not None, "it has one"
        state, gradient = self.state[flat], self._read(flat.grad.view(-1))
        if not state:
            state.update(self.fresh_state(flat, 0))
        state["step"] += applied
        mean: Tensor = state["exp_avg"].view(-1).lerp_(gradient, (1 - self.momentum) * applied)
        return gradient.lerp(mean, self.momentum)

    def _exchange(self, flats: Sequence[Tensor], parts: Sequence[Part]) -> Exchange:
        key = tuple(map(id, flats))
        if key not in self._exchanges:
            assert self.group is not None, "it is connected before"
            self._exchanges[key] = Exchange(parts, self.group, flats[0].device)
        return self._exchanges[key]
