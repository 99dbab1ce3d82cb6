from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_ds.data.tokenizers import base
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.sentencepiece_bpe import SentencePieceBpe
from tests.unit.data.corpora import sentences

HARD = [
    "",
    " ",
    "   leading, trailing and   several spaces   ",
    "\n\n a\n",
    "carriage\r\nreturn\r and \t tab \x0b\x0c",
    "a\u2581b \u2581\u2581 \u2581",
    "nul \0 and \x01\x1f\x7f control",
    "<eod><start> <unk> </s> <0x0A> <delimiter>",
    "e\u0301 n\u0303 \u200d\u200b \ufeff \u2028\u2029\x85",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0010ffff \uffff \ufffd \u2047",
    "汉字 かな العربية",
    "x" * 5000,
]
texts = st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from(" \n\u2581ab<eod>\0\r\tKal.é"))


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=400, deadline=None)
@given(text=texts)
@example(text="\u2581")
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())
    assert not (ids < 5).any()  # text never makes a control symbol


@settings(max_examples=200, deadline=None)
@given(text=texts, places=st.lists(st.integers(0, 100), max_size=3))
def test_ids_do_not_depend_on_cuts_at_line_ends_and_before_spaces(
    tokenizer: Tokenizer, text: str, places: list[int]
) -> None:
    allowed = [at for at in range(1, len(text)) if text[at - 1] == "\n" or text[at] == " "]
    cuts = sorted({allowed[place % len(allowed)] for place in places}) if allowed else []
    borders = [0, *cuts, len(text)]
    parts = [
        tokenizer.encode_part(text[start:stop], text[start - 1 : start]) for start, stop in itertools.pairwise(borders)
    ]
    assert np.array_equal(np.concatenate(parts), tokenizer.encode(text))


def test_ids_are_those_of_sentencepiece_line_by_line(tokenizer: Tokenizer) -> None:
    assert isinstance(tokenizer, SentencePieceBpe)
    lines = [*sentences(200, seed=3), "  two  spaces ", "tab\there", "naïve café 12345 $%&"]
    expected: list[int] = []
    for line in lines:
        expected += [*tokenizer._model.EncodeAsIds(line), 5 + ord("\n")]
    assert tokenizer.encode("\n".join(lines) + "\n").tolist() == expected


def test_encode_gives_writable_int32(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("kalo miren")
    ids[0] = 7
    assert ids.dtype == np.int32
    assert tokenizer.encode("").shape == (0,)


def test_decoding_what_only_a_model_can_write(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([1, 2, 3, 4, 0]) == ""
    assert tokenizer.decode([5 + 0xE2, 5 + ord("a")]) == "\ufffda"
    assert tokenizer.decode(np.array([5 + ord("a")], dtype=np.uint16)) == "a"


def test_token_bytes(tokenizer: Tokenizer) -> None:
    sizes = tokenizer.token_bytes()
    assert sizes.shape == (600,)
    assert (sizes[:5] == 0).all()
    assert (sizes[5:261] == 1).all()
    assert (sizes[261:] > 0).all()


def test_a_full_cache_changes_nothing(
    tokenizer: Tokenizer, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(sentences(300, seed=11))
    expected = tokenizer.encode(text)
    monkeypatch.setattr(base, "MAX_WORDS", 10)
    fresh = load_tokenizer(tokenizer_folder)
    assert np.array_equal(fresh.encode(text), expected)
    assert isinstance(fresh, SentencePieceBpe)
    assert len(fresh._after_space) <= 10
