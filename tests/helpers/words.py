"""A tokenizer that people can read: one token a word, numbered as they come, and sequences shown as words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, Tokenizer


class WordTokenizer(Tokenizer):
    """`S`, `D` and `E` show the special ids; words are those between blanks."""

    def __init__(self) -> None:
        super().__init__(Metadata("words", 1_000_000, SpecialIds(0, 1, 2, 3, 4), {}))
        self._words = ["<unk>", "<eod>", "S", "D", "E"]

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        assert not previous or text[:1].isspace(), "pieces are cut before a space"
        for word in text.split():
            if word not in self._words[5:]:
                self._words.append(word)
        return np.array([self._words.index(word, 5) for word in text.split()], dtype=np.int32)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        places = [word.span() for word in re.finditer(r"\S+", text)]
        return self.encode(text), np.array(places, dtype=np.int64).reshape(-1, 2)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return " ".join(self._words[number] for number in self.checked(ids))

    def token_bytes(self) -> NDArray[np.int32]:
        return np.array([len(word.encode()) for word in self._words], dtype=np.int32)
