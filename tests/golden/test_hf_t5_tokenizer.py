"""T5's unigram model beside transformers' T5Tokenizer and the sentencepiece library: the same ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from hypothesis import given, settings

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.imports import import_hf, import_sentencepiece
from gpt1_ds.evaluation.generate import answer, decode_sentinels
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers import foreign
from tests.helpers.hard_texts import HARD, SYMBOLS, TEXTS, every_character, lines_of, twelve_novels
from tests.helpers.shared_data import shared_data
from tests.unit.data.corpora import sentences

Pair = tuple[Tokenizer, Any]  # ours, and transformers' from the same file
NAMES = ("<pad>", "</s>", "<unk>", "<extra_id_")


def assert_equal(pair: Pair, texts: list[str]) -> None:
    """But for names of symbols in a text, which are symbols to transformers."""
    ours, reference = pair
    texts = [text for text in texts if not any(name in text for name in NAMES)]
    for text, ids in zip(texts, reference(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert ours.encode(text).tolist() == ids, ascii(text)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder, file = tmp_path_factory.mktemp("t5"), shared_data("t5_spiece") / "spiece.model"
    ours, remarks = import_sentencepiece(file, folder / "out")
    assert remarks == ["known by sha256: T5's spiece.model"]
    (folder / "theirs").mkdir()
    shutil.copy(file, folder / "theirs")
    return ours, transformers.T5Tokenizer.from_pretrained(folder / "theirs")


def test_hard_texts(pair: Pair) -> None:
    assert_equal(pair, HARD)
    assert_equal(pair, [every_character()])
    assert_equal(pair, ["e \u200d\u059f \n\u200d\u059f", "\u0600 \u200d\u064e a\r\n\u0301b"])  # marks after a space


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text(pair: Pair, text: str) -> None:
    assert_equal(pair, [text])


def test_every_line_of_twelve_novels(pair: Pair) -> None:
    """Those of the library that T5 was trained with, too."""
    (ours, reference), lines = pair, lines_of(twelve_novels())
    model = sentencepiece.SentencePieceProcessor(model_file=str(shared_data("t5_spiece") / "spiece.model"))
    encoded = reference.backend_tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    for line, ids, theirs in zip(lines, model.EncodeAsIds(lines), encoded, strict=True):
        assert ours.encode(line).tolist() == ids == theirs.ids, ascii(line)


def test_symbols(pair: Pair) -> None:
    ours, reference = pair
    assert ours.vocab_size == len(reference) == 32_100
    assert ours.special_ids.values() == {"unknown": 2, "eod": 1, "pad": 0, "sentinels": 100}
    assert reference.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"]) == [32_099, ours.first_sentinel]
    text_ids = set(ours.encode(f"{SYMBOLS} <extra_id_0> </s>").tolist())
    assert not text_ids & {0, 1, *range(ours.first_sentinel, ours.vocab_size)}, "a text cannot name a symbol"
    assert ours.token_bytes()[[0, 1, 2, *range(32_000, 32_100)]].sum() == 0


def test_decoding_is_that_of_transformers(pair: Pair) -> None:
    ours, reference = pair
    for text in (*HARD, *sentences(50)):
        ids = ours.encode(text).tolist()
        expected = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == expected, ascii(text)
    assert ours.decode([*ours.encode("so far, it was"), 1, 32_099, 0]) == "so far, it was"


def test_exported_for_transformers_and_back(pair: Pair, tmp_path: Path) -> None:
    ours, reference = pair
    for file, value in tokenizer_files(ours, 512).items():
        (tmp_path / file).write_text(json.dumps(value))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(auto) == ours.vocab_size
    assert_equal((ours, auto), HARD)
    for texts in (("It was <extra_id_0> much<extra_id_99>.",), ("one", "two")):
        assert auto(*texts)["input_ids"] == reference(*texts)["input_ids"]
    assert (auto.pad_token_id, auto.eos_token_id, auto.unk_token_id) == (0, 1, 2)
    reference.save_pretrained(tmp_path / "saved")
    back, remarks = import_hf(tmp_path / "saved", tmp_path / "back")
    assert remarks == ["tokenizer.json: unknown <unk>, eod </s>, pad <pad>, 100 sentinels"]
    assert_equal((back, reference), HARD)
    assert back.special_ids == ours.special_ids


def test_a_model_as_released(pair: Pair, tmp_path: Path) -> None:
    """With spiece.model and 32,128 rows, of which no token has the last 28; it answers as transformers' does."""
    ours, reference = pair
    torch.manual_seed(0)
    settings_of_it = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=32_128, decoder_start_token_id=0, **settings_of_it)
    )
    theirs.shared.weight.data[ours.vocab_size :] = 0
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(shared_data("t5_spiece") / "spiece.model", tmp_path / "theirs")
    remarks = foreign.import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert remarks == ["rows 32100 to 32127 belong to no token id, they fill up a multiple of 128: left out"]
    loaded = load_checkpoint(tmp_path / "ours")
    assert loaded.tokenizer.special_ids == ours.special_ids
    for source in ("It was <extra_id_0> morning.", "A caf\u00e9,  \u201cyes\u201d<extra_id_99>"):
        ids = reference(source, return_tensors="pt").input_ids
        found = theirs.eval().generate(ids, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
        assert answer(loaded, source, Sampling(tokens=8, temperature=0)) == decode_sentinels(loaded.tokenizer, found)
