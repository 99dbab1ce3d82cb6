"""Where the documents of a row lie that do not see one another, read off the facts (architecture/facts.py).

Shapes: B rows, F facts, more than COLUMNS; S positions of a stack, N heads on this rank, G = B x N.
"""

from __future__ import annotations

from torch import Tensor

from gpt1_ds.architecture.facts import COLUMNS


def are_apart(facts_BF: Tensor) -> bool:
    """Returns whether rows hold several documents that do not see one another (data.documents=masked)."""
    return facts_BF.shape[1] > COLUMNS


def bounds(facts_BF: Tensor, positions: int, stack: int = 0) -> Tensor:
    """Returns int64 [B, 2, S]: where each of the S positions of this stack has its document, first and after last."""
    first = COLUMNS if stack == 0 else facts_BF.shape[1] - 4 * positions
    return facts_BF[:, first : first + 2 * positions].unflatten(1, (2, positions))  # type: ignore[no-any-return]


def bounds_of_heads(facts_BF: Tensor, positions: int, heads: int, stack: int) -> Tensor:
    """Returns the same int32 [G, 2, S], as attention's kernels read them."""
    return bounds(facts_BF, positions, stack).int().repeat_interleave(heads, 0)


def memory_bounds_of_heads(facts_BF: Tensor, positions: int, heads: int) -> Tensor:
    """Returns int32 [G, 2, S]: where the document of each position of the second stack lies in the first."""
    return facts_BF[:, -2 * positions :].view(-1, 2, positions).int().repeat_interleave(heads, 0)
