"""Tokenizers of which nothing is known but that they read a text: a document is given to them whole, so that its ids
are those that their library gives.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.pieces import PieceTokenizer

MOST_LETTERS = 16 << 20  # of a document


class WholeDocumentTokenizer(PieceTokenizer):
    whole_documents = True

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int32]:
        """int32 [tokens]."""

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        """The ids that `text` gets after `previous`."""
        if not previous:
            return self.encode(text)
        ids, places = self.encode_with_places(previous + text)
        return ids[places[:, 1] > len(previous)]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[NDArray[np.int32], list[int]]:
        """The ids of the text that the sentences make together, and the token that each sentence with tokens begins
        at."""
        ids, places = self.encode_with_places("".join(sentences))
        borders = np.cumsum([0, *map(len, sentences)])
        starts = np.searchsorted(places[:, 1], borders[:-1], side="right")
        return ids, np.unique(starts[starts < len(ids)]).tolist()
