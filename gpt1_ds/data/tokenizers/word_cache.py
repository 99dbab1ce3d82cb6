"""Ids of words that were met before."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

MAX_WORDS = 1 << 18  # about 60 MiB; a full cache is emptied, which costs one encoding per word
MAX_LETTERS = 64  # longer words hardly come back


class WordCache(dict[str, bytes]):
    """Maps a word to its int32 ids as bytes, calling `encode` for words it does not hold.

    Ids are kept as bytes because joining bytes is the fastest way to put the ids of many words into one array.
    """

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        ids = self._encode(word)
        if len(word) <= MAX_LETTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids


def ids_as_bytes(ids: Iterable[int]) -> bytes:
    return np.fromiter(ids, dtype=np.int32).tobytes()
