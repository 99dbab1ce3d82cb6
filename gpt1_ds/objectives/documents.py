"""Which tokens of a row are one document's, for rows whose documents do not see one another (data.documents=masked).

Shapes: B rows, S positions, Q of those that ask, K of those that answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.windows import Int64s


def numbers(tokens_BS: Int64s, end: int, special_BS: NDArray[np.bool_] | None = None) -> Int64s:
    """Returns [B, S]: the number of each token's document in its row, from 0 on. A document ends with the token `end`.
    Special tokens and padding after it are still the document's.
    """
    begins_BS = np.zeros(tokens_BS.shape, dtype=np.bool_)
    begins_BS[:, 1:] = tokens_BS[:, :-1] == end
    if special_BS is not None:
        begins_BS &= ~special_BS
    found_BS: Int64s = begins_BS.cumsum(1)
    return found_BS


def own_bounds(tokens_BS: Int64s, end: int, special_BS: NDArray[np.bool_] | None = None) -> Int64s:
    """Returns [B, 2 S]: where each token's document begins, then where it ends."""
    number_BS = numbers(tokens_BS, end, special_BS)
    return bounds(number_BS, number_BS)


def bounds(asking_BQ: Int64s, answering_BK: Int64s) -> Int64s:
    """Returns [B, 2 Q]: where among those that answer the document of each one that asks begins, then where it ends.
    Both are numbers of documents, ascending in every row; where none of the document answers, it ends where it begins.
    """
    (B, K), most = answering_BK.shape, max(int(asking_BQ.max()), int(answering_BK.max())) + 1
    row_B1 = np.arange(B)[:, None]  # numbers of other rows lie apart, so that one search serves all
    asking, answering = (asking_BQ + most * row_B1).ravel(), (answering_BK + most * row_B1).ravel()
    first_BQ, last_BQ = (
        np.searchsorted(answering, asking, side).reshape(asking_BQ.shape) - K * row_B1 for side in ("left", "right")
    )
    return np.concatenate([first_BQ, last_BQ], 1)
