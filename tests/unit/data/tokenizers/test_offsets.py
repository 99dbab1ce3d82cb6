"""Every kind of tokenizer says where in a text, as its author wrote it, each id stands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, given, settings

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from tests.helpers.hard_texts import HARD, TEXTS
from tests.helpers.published import published
from tests.helpers.shared_data import shared_data

KINDS = ("trained", "openai", "gpt2", "bert", "t5")
WORDS = "The Quick, brown  fox's\n3.14 metres: O'Neil\u2014said \u201cno\u201d\u2026 to naïve Zoë; he   left"


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(kind: str, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if kind == "trained":
        return load_tokenizer(tokenizer_folder)
    return published(kind, tmp_path_factory.mktemp(kind) / "out")


def check(tokenizer: Tokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    assert ids.dtype == np.int32
    assert offsets.shape == (len(ids), 2)
    for first, stop in offsets.tolist():
        assert 0 <= first <= stop <= len(text)
        assert text[first:stop].strip() == text[first:stop]
    if tokenizer.gives_text_back:
        shown = {number for number, letter in enumerate(text) if not letter.isspace()}
        assert {number for first, stop in offsets.tolist() for number in range(first, stop)} >= shown


@pytest.mark.parametrize("number", range(len(HARD)))
def test_places_lie_in_the_text(made: Tokenizer, number: int) -> None:
    check(made, HARD[number])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_places_lie_in_any_text(made: Tokenizer, text: str) -> None:
    check(made, text)


def test_each_word_is_found_by_its_tokens(kind: str, made: Tokenizer) -> None:
    """The text from a word's first token to its last one is the word."""
    words = WORDS.split()
    _, offsets = made.encode_with_offsets(WORDS)
    found, start = [], 0
    for word in words:
        first = WORDS.index(word, start)
        start = first + len(word)
        here = [(a, b) for a, b in offsets.tolist() if first <= a < b <= start]
        found.append(WORDS[min(a for a, _ in here) : max(b for _, b in here)])
    assert found == words


def test_tokens_within_a_word_have_places_of_their_own(kind: str, made: Tokenizer) -> None:
    _, offsets = made.encode_with_offsets("an unbelievably Overcomplicated word.")
    pieces = ["an unbelievably Overcomplicated word."[a:b] for a, b in offsets.tolist()]
    assert "".join(pieces) == "anunbelievablyOvercomplicatedword."


def test_offsets_are_those_of_the_library(tmp_path: Path) -> None:
    """BERT's, whose normaliser drops accents and splits Chinese characters."""
    vocabulary = shared_data("bert_wordpiece") / "vocab.txt"
    theirs = transformers.BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True)
    ours = published("bert", tmp_path / "out")
    text = "A naïve Ünïcödé\tcafé, 漢字 e\u0301t\u0301 end."
    found = theirs(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert ours.encode_with_offsets(text)[1].tolist() == [list(pair) for pair in found]


def test_answers_of_questions_are_cut_out_of_their_paragraphs(made: Tokenizer) -> None:
    """XQuAD's: the tokens that an answer touches give it back, but where it ends within a token."""
    data = json.loads((shared_data("xquad") / "dev.json").read_text())["data"]
    right = total = 0
    for paragraph in [one for article in data for one in article["paragraphs"]][:40]:
        _, offsets = made.encode_with_offsets(paragraph["context"])
        for answer in [one for question in paragraph["qas"] for one in question["answers"]]:
            start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            inside = offsets[(offsets[:, 0] < stop) & (offsets[:, 1] > start)]
            right += paragraph["context"][inside[0, 0] : inside[-1, 1]] == answer["text"]
            total += 1
    assert total > 100
    assert right / total > 0.97
