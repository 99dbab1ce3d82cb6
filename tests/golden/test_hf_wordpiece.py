"""WordPiece beside transformers' BertTokenizerFast: the same ids for every text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.imports import import_wordpiece
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers.hard_texts import HARD, SYMBOLS, TEXTS, every_character, lines_of, twelve_novels
from tests.helpers.shared_data import shared_data
from tests.unit.data.corpora import sentences

Pair = tuple[Tokenizer, Any]  # ours, and transformers' from the same file
PUBLISHED = ["known by sha256: BERT's uncased vocab.txt"]


def theirs(vocabulary: Path, lower_case: bool) -> Any:
    # the text of a control symbol in a text is ordinary text
    loader = transformers.BertTokenizerFast
    return loader(vocab=str(vocabulary), do_lower_case=lower_case, split_special_tokens=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("\n".join([*sentences(2000, seed=7), "naïve CAFÉ 漢字, (so)!"]))
    ours = train_tokenizer([folder / "text.txt"], folder / "out", 300, model="wordpiece", cased=True)
    return ours, theirs(folder / "out" / "vocab.txt", False)


@pytest.fixture(scope="module", params=["uncased", "cased"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The uncased vocabulary, also as if it were a cased one: most capitals are unknown to it then."""
    folder, cased = tmp_path_factory.mktemp("bert"), request.param == "cased"
    vocabulary = shared_data("bert_wordpiece") / "vocab.txt"
    ours, remarks = import_wordpiece(vocabulary, folder / "out", cased)
    assert remarks == PUBLISHED
    return ours, theirs(vocabulary, not cased)


def assert_equal(pair: Pair, texts: list[str]) -> None:
    ours, reference = pair
    for text, ids in zip(texts, reference(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert ours.encode(text).tolist() == ids, ascii(text)


def test_hard_texts(trained: Pair, published: Pair) -> None:
    for pair in (trained, published):
        assert_equal(pair, HARD)
        assert_equal(pair, [every_character()])


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text(trained: Pair, text: str) -> None:
    assert_equal(trained, [text])


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text_with_the_published_vocabulary(published: Pair, text: str) -> None:
    assert_equal(published, [text])


def test_every_line_of_twelve_novels(published: Pair) -> None:
    lines = lines_of(twelve_novels())
    uncased = published[1].do_lower_case
    assert_equal(published, lines if uncased else lines[::5])  # nobody has a cased vocabulary like this one


def test_symbols_of_the_published_vocabulary(published: Pair) -> None:
    ours = published[0]
    assert ours.vocab_size == 30522
    expected = {"unknown": 100, "eod": 102, "cls": 101, "separator": 102, "pad": 0, "mask": 103}
    assert ours.special_ids.present() == expected
    assert not set(ours.encode(SYMBOLS).tolist()) & {0, 101, 102, 103}
    assert ours.decode([101, *ours.encode("so far, it was 漢"), 102, 0, 0]) == "so far, it was 漢"
    assert ours.token_bytes()[[100, 102, 101, 0, 103]].tolist() == [0] * 5


def test_decoding_is_that_of_transformers(published: Pair) -> None:
    ours, reference = published
    for text in (*HARD, *sentences(50)):
        ids = ours.encode(text).tolist()
        known = [number for number in ids if number != 100]
        expected = reference.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == expected


def test_exported_for_transformers(published: Pair, tmp_path: Path) -> None:
    ours, reference = published
    for file, value in tokenizer_files(ours, 128).items():
        (tmp_path / file).write_text(json.dumps(value))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(auto) == ours.vocab_size
    assert_equal((ours, auto), HARD)
    found, expected = auto("It was", "so much"), reference("It was", "so much")
    assert found["input_ids"] == expected["input_ids"]
    assert found["token_type_ids"] == expected["token_type_ids"]
    assert (auto.pad_token_id, auto.mask_token_id, auto.unk_token_id) == (0, 103, 100)
    assert (auto.cls_token_id, auto.sep_token_id) == (101, 102)
