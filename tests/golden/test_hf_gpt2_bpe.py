"""Byte-level BPE beside transformers' GPT2TokenizerFast and RobertaTokenizerFast: the same ids for every text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.imports import import_gpt2
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers.hard_texts import HARD, SYMBOLS, TEXTS, every_character, lines_of, twelve_novels
from tests.helpers.shared_data import shared_data
from tests.unit.data.corpora import sentences

Pair = tuple[Tokenizer, Any]  # ours, and transformers' from the same files


def theirs(kind: str, vocabulary: Path, merges: Path) -> Any:
    # the text of a control symbol in a text is ordinary text
    return getattr(transformers, kind)(vocab=str(vocabulary), merges=str(merges), split_special_tokens=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("\n".join(sentences(2000, seed=7)))
    ours = train_tokenizer([folder / "text.txt"], folder / "out", 700, model="gpt2-bpe", masks=True)
    return ours, theirs("GPT2TokenizerFast", folder / "out" / "vocab.json", folder / "out" / "merges.txt")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder, source = tmp_path_factory.mktemp("gpt2"), shared_data("gpt2_bpe")
    ours, remarks = import_gpt2(source / "encoder.json", source / "vocab.bpe", folder / "out")
    assert remarks == ["known by sha256: GPT-2's encoder.json, GPT-2's vocab.bpe"]
    return ours, theirs("GPT2TokenizerFast", source / "encoder.json", source / "vocab.bpe")


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """fairseq orders GPT-2's pieces by frequency; its list is not at hand. Assumed here: its first three pieces, then
    GPT-2's order. Control symbols, the number of pieces, and the three made-up words are as in roberta-base.
    """
    folder, source = tmp_path_factory.mktemp("roberta"), shared_data("gpt2_bpe")
    pieces = json.loads((source / "encoder.json").read_text())
    first = ["<s>", "<pad>", "</s>", "<unk>", ".", "Ġthe", ","]
    order = [*first, *(piece for piece in pieces if piece not in first)]
    order += ["madeupword0000", "madeupword0001", "madeupword0002", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(order)}))
    ours, remarks = import_gpt2(folder / "vocab.json", source / "vocab.bpe", folder / "out")
    assert remarks == [
        "known by sha256: GPT-2's vocab.bpe",
        "not among the published files that are known, taken as they are: vocab.json",
    ]
    return ours, theirs("RobertaTokenizerFast", folder / "vocab.json", source / "vocab.bpe")


def assert_equal(pair: Pair, texts: list[str]) -> None:
    ours, reference = pair
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        assert ours.encode(text).tolist() == ids, ascii(text)
        assert ours.decode(ids) == text


@pytest.mark.parametrize("name", ["trained", "gpt2", "roberta"])
def test_hard_texts(name: str, request: pytest.FixtureRequest) -> None:
    pair = request.getfixturevalue(name)
    assert_equal(pair, HARD)
    assert_equal(pair, [every_character()])


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text(trained: Pair, text: str) -> None:
    assert_equal(trained, [text])


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text_with_the_published_vocabulary(gpt2: Pair, text: str) -> None:
    assert_equal(gpt2, [text])


def test_every_line_of_twelve_novels(gpt2: Pair) -> None:
    novels = twelve_novels()
    assert_equal(gpt2, lines_of(novels))
    assert_equal(gpt2, novels[:1])


def test_symbols_of_the_published_vocabularies(gpt2: Pair, roberta: Pair) -> None:
    ours = gpt2[0]
    assert ours.vocab_size == 50257
    assert ours.special_ids.present() == {"eod": 50256}
    assert ours.decode([50256, *ours.encode("a")]) == "a"
    ours = roberta[0]
    assert ours.vocab_size == 50265
    expected = {"unknown": 3, "eod": 2, "cls": 0, "separator": 2, "pad": 1, "mask": 50264}
    assert ours.special_ids.present() == expected
    assert not set(ours.encode(SYMBOLS).tolist()) & set(expected.values())


@pytest.mark.parametrize("name", ["trained", "gpt2", "roberta"])
def test_exported_for_transformers(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ours, _ = request.getfixturevalue(name)
    for file, value in tokenizer_files(ours, 128).items():
        (tmp_path / file).write_text(json.dumps(value))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(auto) == ours.vocab_size
    assert_equal((ours, auto), HARD)
    for text, ids in zip(HARD, auto(HARD, add_special_tokens=False)["input_ids"], strict=True):
        assert auto.decode(ids, skip_special_tokens=True) == text
    roles = ours.special_ids.present()
    assert auto.eos_token_id == ours.eod_id
    if name == "gpt2":
        assert auto("a b")["input_ids"] == ours.encode("a b").tolist()
        return
    a, b = ours.encode("a").tolist(), ours.encode("b").tolist()
    first, second = roles["cls"], roles["separator"]
    assert auto("a", "b")["input_ids"] == [first, *a, second, second, *b, second]
    assert (auto.pad_token_id, auto.mask_token_id, auto.cls_token_id) == (roles["pad"], roles["mask"], first)


def test_the_pair_of_roberta_is_transformers_own(roberta: Pair, tmp_path: Path) -> None:
    ours, reference = roberta
    for file, value in tokenizer_files(ours, 128).items():
        (tmp_path / file).write_text(json.dumps(value))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert auto("It was", "so much")["input_ids"] == reference("It was", "so much")["input_ids"]
