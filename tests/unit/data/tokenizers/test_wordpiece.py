"""WordPiece on a small vocabulary; tests/golden compares it with transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer
from gpt1_ds.data.tokenizers.imports import import_wordpiece
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from tests.helpers.hard_texts import CUTS, TEXTS, encode_in_parts

OLD = Path(__file__).parents[3] / "golden" / "tokenizers-format-2"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "a", "b", "##a", "##b", "ab", "##ab", "É", "e", "漢", "字"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wordpiece")
    (place / "vocab.txt").write_text("\n".join(PIECES))
    for name, cased in (("uncased", False), ("cased", True)):
        import_wordpiece(place / "vocab.txt", place / name, cased)
    return place


@pytest.fixture(scope="module")
def uncased(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / "uncased")


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [PIECES[number] for number in tokenizer.encode(text)]


def test_the_longest_piece_first(folder: Path, uncased: Tokenizer) -> None:
    assert pieces(uncased, "abab,baa\n\nÉ  E\t漢字abc") == (
        ["ab", "##ab", ",", "b", "##a", "##a", "e", "e", "漢", "字", "[UNK]"]
    )
    assert pieces(load_tokenizer(folder / "cased"), "Aab É e") == ["[UNK]", "É", "e"]
    assert pieces(uncased, "a" * 100 + " " + "a" * 101) == ["a", *["##a"] * 99, "[UNK]"]


def test_capitals_count(folder: Path, uncased: Tokenizer) -> None:
    assert load_tokenizer(folder / "cased").fingerprint != uncased.fingerprint


def test_decoding_gives_the_gist(uncased: Tokenizer) -> None:
    assert uncased.decode([2, *uncased.encode("Abab ,  BA zz"), 3, 0]) == "abab, ba"


def test_token_bytes_count_a_blank_before_a_word(uncased: Tokenizer) -> None:
    expected = [0, 0, 0, 0, 0, 1, 2, 2, 1, 1, 3, 2, 3, 2, 4, 4]
    assert uncased.token_bytes().tolist() == expected


def test_roles(uncased: Tokenizer) -> None:
    expected = {"unknown": 1, "eod": 3, "cls": 2, "separator": 3, "pad": 0, "mask": 4}
    assert uncased.special_ids.present() == expected
    with pytest.raises(ConfigError, match=r"needs a token <delimiter>: the tokenizer has none; train one"):
        _ = uncased.delimiter_id


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, places=CUTS)
def test_ids_do_not_depend_on_cuts(uncased: Tokenizer, text: str, places: list[int]) -> None:
    ids = uncased.encode(text).tolist()
    assert encode_in_parts(uncased, text, places) == ids
    assert not {0, 2, 3, 4} & set(ids)  # text never makes a control symbol


@pytest.mark.parametrize("settings", ["{}", "[]", "{", '{"do_lower_case": 1}'])
def test_settings_that_say_nothing(folder: Path, tmp_path: Path, settings: str) -> None:
    from gpt1_ds.data.tokenizers.wordpiece import read_settings

    with pytest.raises(DataError, match="does not say do_lower_case"):
        read_settings(tmp_path / "x.json", settings.encode())


def test_another_vocabulary_than_the_metadata(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(OLD / "wordpiece-uncased", tmp_path / "copy"))
    values = json.loads((copy / METADATA).read_text())
    (copy / METADATA).write_text(json.dumps({**values, "special_ids": {**values["special_ids"], "mask": 5}}))
    with pytest.raises(DataError, match="not the vocabulary of the metadata"):
        load_tokenizer(copy)
