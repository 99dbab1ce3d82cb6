from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings

from gpt1_ds.data.tokenizers import base
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.sentencepiece_bpe import SentencePieceBpe
from tests.helpers.hard_texts import CUTS, HARD, TEXTS, encode_in_parts
from tests.unit.data.corpora import sentences


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
@example(text="\u2581")
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())
    assert not (ids < 5).any()  # text never makes a control symbol


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, places=CUTS)
def test_ids_do_not_depend_on_cuts(tokenizer: Tokenizer, text: str, places: list[int]) -> None:
    assert encode_in_parts(tokenizer, text, places) == tokenizer.encode(text).tolist()


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
