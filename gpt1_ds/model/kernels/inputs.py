"""The inputs of the kernels, whichever device computes, and the memory layout of their results.

Shapes: G = B rows x N heads of this rank (heads fastest), S queries, T keys, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Which keys a query sees, and its scores of them: factor x q k' + bias.

    Key j is visible to query i if j < until or, where `causal`, if j <= i. Without `until_G` all keys are visible, or
    where `causal` no others. In a bidirectional row of length n, until = n: positions after it see the padding, but
    nobody reads them. Cross attention is not causal, and its until is the length of the source. A query sees only the
    keys of its document where `bounds` say which is the first of these and which the first after them. A query that
    sees no key gives 0.
    """

    factor: float | None = None  # None: 1 / sqrt(H)
    until_G: Tensor | None = None  # int32
    causal: bool = True
    bias_NST: Tensor | None = None  # fp32, of each head, for all rows
    bounds_G2S: Tensor | None = None  # int32

    def factor_of(self, q_GSH: Tensor) -> float:
        return 1.0 / math.sqrt(q_GSH.shape[-1]) if self.factor is None else self.factor

    def visible(self, positions: int, keys: int, device: torch.device) -> Tensor | None:
        """Returns booleans [G, S, T] or [S, T], None where all keys are visible; the S positions are the last ones."""
        return self.seen(torch.arange(keys - positions, keys, device=device), torch.arange(keys, device=device))

    def seen(self, query_S: Tensor, key_T: Tensor) -> Tensor | None:
        """Returns the same of queries and keys at these places of a row."""
        before_ST = key_T <= query_S[:, None]
        seen = before_ST if self.causal else None
        if self.until_G is not None:
            until_GST = (key_T < self.until_G[:, None, None]).expand(-1, len(query_S), -1)
            seen = until_GST | before_ST if self.causal else until_GST
        if self.bounds_G2S is None:
            return seen
        begin_GS1, end_GS1 = self.bounds_G2S[..., None].unbind(1)
        own_GST = (key_T >= begin_GS1) & (key_T < end_GS1)
        return own_GST if seen is None else seen & own_GST

    def hidden(self, heads: slice, rows: slice, keys: slice, device: torch.device) -> Tensor:
        """Returns booleans [g, R, T], true where these queries of these heads do not see one of these keys, where that
        depends on the row.
        """
        until_g = None if self.until_G is None else self.until_G[heads]
        bounds_g2R = None if self.bounds_G2S is None else self.bounds_G2S[heads, :, rows]
        row_R, key_T = (torch.arange(part.start, part.stop, device=device) for part in (rows, keys))
        seen = replace(self, until_G=until_g, bounds_G2S=bounds_g2R).seen(row_R, key_T)
        assert seen is not None, "rows have an until or bounds"
        return ~seen


CAUSAL = Scores()


@dataclass(frozen=True)
class Drop:
    """The hashed dropout mask of one attention call: two int32[G] keys (dropout.site_keys), the 16-bit limit below
    which an element is dropped (dropout.threshold), the scale of the others, and counters of a query, one for each pair
    of keys: half the model's context, not half of T, because layouts pad a batch differently.
    """

    key_G: Tensor
    second_G: Tensor
    limit: int
    scale: float
    pairs: int


@dataclass(frozen=True)
class RowDrop:
    """The hashed dropout mask of states [S, B, D]: two int32[B] keys, the position of the first of them in the whole
    row, limit and scale as in `Drop`.
    """

    key_B: Tensor | None  # None: nothing is dropped
    second_B: Tensor | None
    first: int
    limit: int
    scale: float


def empty_heads(x_GSH: Tensor) -> Tensor:
    """Returns memory for a result of this shape, laid out as [S, G, H], so that [S, B, width] is a view of it."""
    heads, positions, width = x_GSH.shape
    return x_GSH.new_empty(positions, heads, width).transpose(0, 1)


def each_of(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q [G, S, H], k and v [G, T, H], the slices of tensors [P, G, positions, H]."""
    return tuple(one for part in parts for one in part.unbind())  # type: ignore[return-value]  # always three


def empty_gradients(parts: Sequence[Tensor]) -> list[Tensor]:
    """Returns memory for the gradients of `parts`. Each is laid out as [positions, G, P, H]: the gradient [positions,
    B, N x P x H] of the product that gave the part is a view of it.
    """
    return [part.new_empty([part.shape[axis] for axis in (2, 1, 0, 3)]).permute(2, 1, 0, 3) for part in parts]


def attention_results(q_GSH: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what attention gives on a GPU, without values: out [G, S, H], and the log-sum-exp of each query's scores
    fp32 [G, S]. Where torch computes it the second has no values at all; a compiled graph, which may be kept on disk,
    serves the kernels and torch.
    """
    return empty_heads(q_GSH), q_GSH.new_empty(q_GSH.shape[:2], dtype=torch.float32)
