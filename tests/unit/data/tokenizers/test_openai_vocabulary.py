"""The 2018 tokenizer on a made-up vocabulary of the released size; tests/golden has the real one."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.openai_bpe import OpenAIBpe, merge
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz'.-," + "".join(map(chr, range(0x100, 0x100 + 208)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """238 characters and merges of the first 40,000 of their pairs."""
    place = tmp_path_factory.mktemp("openai")
    pairs = list(itertools.islice(itertools.product(LETTERS, LETTERS), 40000))
    pieces = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), *(first + second for first, second in pairs)]
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", *pieces, "\n</w>"])}
    (place / "encoder.json").write_text(json.dumps(vocabulary))
    (place / "vocab.bpe").write_text("\n".join(["#version", *map(" ".join, pairs), ""]))
    import_openai(place / "encoder.json", str(place / "vocab.bpe"), place / "out")
    return place / "out"


def test_a_made_up_vocabulary(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, OpenAIBpe)
    assert tokenizer.vocab_size == 40482
    ids = tokenizer.encode("\nabba CAB\n\n5 a")
    assert tokenizer.decode(ids) == "abba cab \na "
    assert ids.dtype == np.int32
    assert ids.tolist()[-3:] == [40477, 0, tokenizer.encode("a")[0]]  # 5 is not in the vocabulary


@pytest.mark.parametrize(("library", "text"), [("ftfy", "café"), ("spacy.lang.en", "a")])
def test_missing_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch, library: str, text: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    tokenizer = load_tokenizer(folder)  # decoding needs neither
    assert tokenizer.decode([1]) == "a"
    with pytest.raises(DataError, match=r"pip install 'gpt1-ds\[openai\]'"):
        tokenizer.encode(text)


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("a", ["a</w>"]),
        ("aaaa", ["aa", "a", "a</w>"]),
        ("aaaaa", ["aa", "aa", "a</w>"]),
        ("abcab", ["abc", "a", "b</w>"]),
        ("xyz", ["x", "y", "z</w>"]),
        ("bcab", ["bc", "a", "b</w>"]),
    ],
)
def test_merging_in_the_order_of_ranks(word: str, pieces: list[str]) -> None:
    assert merge(word, {("a", "a"): 0, ("a", "b"): 1, ("b", "c"): 2, ("ab", "c"): 3}) == pieces


def test_long_words_are_affordable() -> None:
    assert len(merge("ab" * 50_000, {("a", "b"): 0})) == 50_001


@pytest.mark.parametrize("wrong", [{"a": 1.0}, {"a": True}, {"a": [1]}, {"\ud800": 1}], ids=ascii)
def test_what_is_not_the_release_is_refused(wrong: dict[str, object], folder: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((folder.parent / "encoder.json").read_text())
    vocabulary = {**{piece: number for piece, number in vocabulary.items() if number != 1}, **wrong}
    (tmp_path / "encoder.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match="not the released vocabulary"):
        import_openai(tmp_path / "encoder.json", folder.parent / "vocab.bpe", tmp_path / "out")
