"""Rows of text for models that see a whole row at once, whatever text they are made of.

Shapes: B rows of a micro-batch, S positions (the context), G rows of the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.windows import Int64s


@dataclass(frozen=True)
class TextRows:
    """One micro-batch. `lengths_G` are those of all rows of its global batch, 0 of what only fills it up."""

    tokens_BS: Int64s  # padded at the end
    length_B: Int64s
    second_B: Int64s  # where the second segment begins; the length where there is none
    follows_B: Int64s  # 0: the second text follows the first, 1: it is a random one, -1: there is none
    row_B: Int64s  # number within the global batch; -1 only fills up the batch
    number_B: Int64s  # of the sequence in the run; of the window in held-out text
    special_BS: NDArray[np.bool_]  # special tokens and padding
    lengths_G: Int64s

    @classmethod
    def of_windows(cls, tokens_BT: Int64s, row_B: Int64s, number_B: Int64s, lengths_G: Int64s) -> TextRows:
        """Returns the windows of S + 1 tokens, of which the last is left out: no special tokens, one segment."""
        tokens_BS = tokens_BT[:, :-1]
        B, S = tokens_BS.shape
        length_B, special_BS = np.full(B, S), np.zeros((B, S), dtype=np.bool_)
        return cls(tokens_BS, length_B, length_B, np.full(B, -1), row_B, number_B, special_BS, lengths_G)


def count_windows(stream: TokenStream, context: int) -> int:
    """Returns the number of windows of `context` inputs and their labels in a stream. Raises DataError when there is
    not one.
    """
    windows = (stream.tokens - 1) // context
    if windows < 1:
        larger = ", or with a larger --validation" if stream.name == "validation" else ""
        raise DataError(
            f"{stream.folder}: its {stream.name} split has {stream.tokens} tokens, too few for one window of "
            f"model.context={context}; use a shorter context, or build it again of more text{larger}"
        )
    return windows
