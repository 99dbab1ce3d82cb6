"""How the names and tensors of transformers' parameters become ours, and back: rules of names, and transforms.

D width, N heads, H head width, P parts of a fused matrix, whose rows are [N, P, H] here (architecture/block.py); the
rows of a gated layer are [F, 2].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Facts:
    """What a transform asks of a model: heads, and the rows of their position table before the first position."""

    heads: int
    first_position: int = 0


@dataclass(frozen=True)
class Transform:
    """Two functions, each the inverse of the other, bit for bit."""

    to_theirs: Callable[[Tensor, Facts], tuple[Tensor, ...]]  # one tensor for each of their names
    to_ours: Callable[[tuple[Tensor, ...], Facts], Tensor]


def _by_part(rows: Tensor, facts: Facts, count: int = 3) -> Tensor:
    """Returns rows [N, P, H] as [P, N, H]."""
    parts: Tensor = rows.unflatten(0, (facts.heads, count, -1))
    return parts.transpose(0, 1).flatten(0, 2)


def _by_head(rows: Tensor, facts: Facts, count: int = 3) -> Tensor:
    """Returns rows [P, N, H] as [N, P, H]."""
    parts: Tensor = rows.unflatten(0, (count, facts.heads, -1))
    return parts.transpose(0, 1).flatten(0, 2)


def _shifted(rows_SD: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
    """Returns positions after rows that no token has, and a table of one segment, which is zero."""
    unused = rows_SD.new_zeros(facts.first_position, rows_SD.shape[1])
    return torch.cat([unused, rows_SD]), rows_SD.new_zeros(1, rows_SD.shape[1])


def _positions(theirs: tuple[Tensor, ...], facts: Facts) -> Tensor:
    """Returns our rows of positions. Every token has the one segment, so its row is part of them."""
    rows_SD, segment_1D = theirs
    rows_SD = rows_SD[facts.first_position :]
    return rows_SD + segment_1D if segment_1D.any() else rows_SD.clone()  # -0.0 + 0.0 would be 0.0


SAME = Transform(lambda value, _: (value,), lambda theirs, _: theirs[0])
TRANSPOSED = Transform(lambda value, _: (value.T,), lambda theirs, _: theirs[0].T)
QKV = Transform(lambda value, facts: (_by_part(value, facts),), lambda theirs, facts: _by_head(theirs[0], facts))
QKV_TRANSPOSED = Transform(
    lambda value, facts: (_by_part(value, facts).T,), lambda theirs, facts: _by_head(theirs[0].T, facts)
)
SPLIT_QKV = Transform(  # one matrix each of queries, keys and values
    lambda value, facts: tuple(_by_part(value, facts).chunk(3)),
    lambda theirs, facts: _by_head(torch.cat(theirs), facts),
)
SPLIT_KV = Transform(
    lambda value, facts: tuple(_by_part(value, facts, 2).chunk(2)),
    lambda theirs, facts: _by_head(torch.cat(theirs), facts, 2),
)
GATED = Transform(  # one matrix each of the gate and of what it gates
    lambda value, _: (value[::2], value[1::2]), lambda theirs, _: torch.stack(theirs, 1).flatten(0, 1)
)
BOTH_TABLES = Transform(  # of relative positions, one table of each stack
    lambda value, _: tuple(table.T for table in value), lambda theirs, _: torch.stack([table.T for table in theirs])
)
WITH_UNUSED_ROWS = Transform(_shifted, _positions)


@dataclass(frozen=True)
class Rule:
    """Which parameters of theirs one of ours is; a `*` in the names stands for the number of the block."""

    ours: str
    theirs: tuple[str, ...]  # short names
    transform: Transform


def linear_rules(ours: str, theirs: str | tuple[str, ...], weight: Transform, bias: Transform) -> tuple[Rule, Rule]:
    """Returns the rules of a matrix and its bias."""
    names = (theirs,) if isinstance(theirs, str) else theirs
    matrix = Rule(f"{ours}.weight", tuple(f"{name}.weight" for name in names), weight)
    return matrix, Rule(f"{ours}.bias", tuple(f"{name}.bias" for name in names), bias)


def matrix(ours: str, theirs: str) -> Rule:
    """Returns the rule of a norm or a linear layer without a bias, stored alike."""
    return Rule(f"{ours}.weight", (f"{theirs}.weight",), SAME)


def same(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """Returns the rules of a norm or a linear layer that is stored alike."""
    return linear_rules(ours, theirs, SAME, SAME)


def conv1d(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """Returns the rules of a transformers `Conv1D`, whose matrix is [in, out]; ours is [out, in]."""
    return linear_rules(ours, theirs, TRANSPOSED, SAME)
