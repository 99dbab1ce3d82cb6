"""Tokenizers whose ids are pieces of text, each of known bytes, so that joined pieces are the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import Tokenizer


class PieceTokenizer(Tokenizer):
    """`pieces` are the UTF-8 bytes of each id's text, empty for control symbols. A piece holds the space before it."""

    pieces: list[bytes]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Bytes that are not UTF-8, which only a model can produce, become U+FFFD."""
        return b"".join(map(self.pieces.__getitem__, self.checked(ids))).decode("utf-8", errors="replace")

    def token_bytes(self) -> NDArray[np.int32]:
        return np.array([len(piece) for piece in self.pieces], dtype=np.int32)

    def begins_word(self) -> NDArray[np.bool_]:
        """White space and signs begin a word, too; control symbols do."""
        return np.array([not (piece[:1].isalnum() or piece[:1] >= b"\x80") for piece in self.pieces])
