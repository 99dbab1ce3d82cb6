from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.data.tokenizers import base
from gpt1_ds.data.tokenizers.base import WordCache, ids_as_bytes


def test_words_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_WORDS", 3)
    asked = []

    def encode(word: str) -> bytes:
        asked.append(word)
        return ids_as_bytes(map(ord, word))

    cache = WordCache(encode)
    joined = b"".join(map(cache.__getitem__, ["ab", "c", "ab", "d", "ab"]))
    assert np.frombuffer(joined, dtype=np.int32).tolist() == list(map(ord, "abcabdab"))
    assert asked == ["ab", "c", "d"]
    _ = cache["e"]  # a full cache is emptied
    assert list(cache) == ["e"]


def test_long_words_are_not_remembered() -> None:
    cache = WordCache(lambda word: b"")
    _ = cache["x" * 64], cache["x" * 65]
    assert list(cache) == ["x" * 64]
