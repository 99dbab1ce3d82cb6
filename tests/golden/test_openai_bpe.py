"""The 2018 tokenizer against the facts sheet and against a slow, literal re-statement of its published pipeline."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ftfy
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spacy.lang import en as english

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import openai_bpe
from gpt1_ds.data.tokenizers.openai_bpe import OpenAIBpe, merge
from gpt1_ds.data.tokenizers.registry import import_openai
from tests.helpers.published import published
from tests.helpers.shared_data import shared_data


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> OpenAIBpe:
    loaded = published("openai", tmp_path_factory.mktemp("openai") / "tokenizer")
    assert isinstance(loaded, OpenAIBpe)
    return loaded


class Reference:
    """The published steps one after the other, without any short cut."""

    def __init__(self, source: Path) -> None:
        self.ids = json.loads((source / "encoder_bpe_40000.json").read_text())
        lines = (source / "vocab_40000.bpe").read_text().split("\n")[1:-1]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.split = english.English().tokenizer
        self.pieces: dict[str, list[str]] = {}

    def encode(self, text: str) -> list[int]:
        text = self.standardize(ftfy.fix_text(text))
        pieces = [piece for token in self.split(text) for piece in self.bpe(token.text.lower())]
        return [self.ids.get(piece, 0) for piece in pieces]

    def standardize(self, text: str) -> str:
        for old, new in (("\u2014", "-"), ("\u2013", "-"), ("\u2015", "-"), ("\u2026", "..."), ("\u00b4", "'")):
            text = text.replace(old, new)
        for mark in '-~!";?+,)(/*[]}{|_':
            text = re.sub(f"({re.escape(mark)}+)", r" \1 ", text)
        text = re.sub(r"\s*\n\s*", " \n ", text)
        return re.sub(r"[^\S\n]+", " ", text).strip()

    def bpe(self, token: str) -> list[str]:
        if token not in self.pieces:
            self.pieces[token] = self.sweep(token)
        return self.pieces[token]

    def sweep(self, token: str) -> list[str]:
        """All pairs of the lowest rank are merged in one sweep from left to right, until no pair has a rank."""
        if token == "\n ":
            return ["\n</w>"]
        word = [*token[:-1], token[-1] + "</w>"]
        while len(word) > 1:
            best = min(itertools.pairwise(word), key=lambda pair: self.ranks.get(pair, 10**9))
            if best not in self.ranks:
                break
            merged: list[str] = []
            at = 0
            while at < len(word):
                if tuple(word[at : at + 2]) == best:
                    merged.append(word[at] + word[at + 1])
                    at += 2
                else:
                    merged.append(word[at])
                    at += 1
            word = merged
        return word


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(shared_data("gpt1_bpe"))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("very", [963]),
        ("Positive", [6353]),
        ("negative", [9503]),
        ("Mr.", [1682]),
        ("\n one \n\n \n two\n", [616, 40477, 761]),
        ("", []),
    ],
)
def test_ids_of_the_facts_sheet(tokenizer: OpenAIBpe, reference: Reference, text: str, ids: list[int]) -> None:
    if "one" in text:
        ids = [reference.ids["one</w>"], 40477, reference.ids["two</w>"]]
    assert tokenizer.encode(text).tolist() == ids


def test_words_are_split_before_they_are_lower_cased(tokenizer: OpenAIBpe) -> None:
    assert tokenizer.encode("doesn't").tolist()[-1] == 538  # n't
    assert len(tokenizer.encode("Can't")) == 2


def test_counts(tokenizer: OpenAIBpe) -> None:
    assert tokenizer.vocab_size == 40482
    ids = (tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id, tokenizer.eod_id, tokenizer.unknown_id)
    assert ids == (40478, 40479, 40480, 40481, 0)
    texts = Counter(type(text) for text in tokenizer.pieces)
    assert texts == {str: 40478}
    assert len(tokenizer.ranks) == 40000
    assert tokenizer.token_bytes()[[0, 40478, 40479, 40480, 40481]].tolist() == [0] * 5
    assert tokenizer.token_bytes()[40477] == 1


def test_books_give_the_same_ids(tokenizer: OpenAIBpe, reference: Reference) -> None:
    words = tokens = 0
    for path in sorted(shared_data("books").glob("*.txt"))[::8]:
        text = path.read_text(encoding="utf-8-sig")[50_000:130_000]
        ids = tokenizer.encode(text)
        assert ids.tolist() == reference.encode(text), path.name
        words += len(text.split())
        tokens += len(ids)
    assert 1.2 < tokens / words < 1.5


HARD = [
    "a&amp;b <i> a&amp;b\n&lt;",
    "&quot;x&quot;\n<b>\n&amp;",
    "caf\u00e9 na\u00efve \u201ccurly\u201d \u2018quotes\u2019 \u2014 dash\u2026 \u00b4",
    "mojibake: sch\u00c3\u00b6n â€” ",
    "back\\slash C:\\dir a++b x_y~z {a|b} [c] (d)/e*f",
    "one\r\ntwo\rthree\u2028four\x85five\x0csix\x0bseven",
    "\x1b[31mred\x1b[0m \x07bell \ufeffbom",
    "\u00a0nbsp\u3000wide \uff21\uff22 ligature \ufb01",
    "http://example.com/a-b?c=d user@example.com :-) 10km U.S. e.g. 5p.m.",
    "\u0130stanbul STRASSE \u1e9e \u2603 \U0001f600",
    "x" * 300,
]


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_give_the_same_ids(tokenizer: OpenAIBpe, reference: Reference, text: str) -> None:
    assert tokenizer.encode(text).tolist() == reference.encode(text)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("aeTh rst.,'\"-\n\t\r&;<>amp\u00e9\u2019\u2014\u2026()/\\0%$\u00a0\x85")) | st.text()
)
@example(text="0\n")
@example(text="'\t'\u20190")
@example(text="he said' \u00b4\u00b4so\n' ''")
def test_any_text_gives_the_same_ids(tokenizer: OpenAIBpe, reference: Reference, text: str) -> None:
    assert tokenizer.encode(text).tolist() == reference.encode(text)


@settings(max_examples=200, deadline=None)
@given(word=st.text(st.sampled_from("theinsorda"), min_size=1, max_size=40))
def test_merging_by_heap_is_merging_by_sweeps(tokenizer: OpenAIBpe, reference: Reference, word: str) -> None:
    assert merge(word, tokenizer.ranks) == reference.sweep(word)


def test_ids_do_not_depend_on_cuts_at_line_ends_and_before_spaces(tokenizer: OpenAIBpe) -> None:
    text = "\n\n One  line,\n\n \n and -- another.\nThe last\n\n"
    whole = tokenizer.encode(text).tolist()
    for cut in (at for at in range(4, len(text)) if text[at - 1] == "\n" or text[at] == " "):
        head, tail = tokenizer.encode_part(text[:cut], ""), tokenizer.encode_part(text[cut:], text[cut - 1])
        assert np.concatenate([head, tail]).tolist() == whole, cut


def test_decoding_gives_the_gist(tokenizer: OpenAIBpe) -> None:
    ids = [tokenizer.start_id, *tokenizer.encode("Mr. Smith can't swim;\nvery sad"), tokenizer.extract_id, 0]
    assert tokenizer.decode(ids) == "mr. smith ca n't swim ; \nvery sad "


def forget(tokenizer: OpenAIBpe) -> None:
    for cache in (tokenizer._words, tokenizer._parts, tokenizer._tokens):
        cache.clear()


def test_forgetting_spacys_words_changes_nothing(tokenizer: OpenAIBpe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_bpe, "MAX_SPACY_WORDS", 2)
    text = "Five words that nobody hadn't-met (before)"
    forget(tokenizer)
    first = tokenizer.encode(text).tolist()
    monkeypatch.undo()
    forget(tokenizer)
    assert tokenizer.encode(text).tolist() == first


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab", lambda text: text[:-1], "not JSON"),
        ("vocab", lambda text: text.replace(": 40477", ": 40478"), "not the released vocabulary"),
        ("vocab", lambda text: "[]", "not the released vocabulary"),
        ("merges", lambda text: text + "a b\n", "40001 merges, not the released 40000"),
        ("merges", lambda text: text.replace("\nt h\n", "\nth e</w>\n", 1), "39999|does not fit|merges"),
        ("merges", lambda text: "\n".join(text.split("\n")[::-1]), "merges|does not fit"),
        ("merges", None, "no such file; download it"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, change: Callable[[str], str] | None, message: str) -> None:
    source = shared_data("gpt1_bpe")
    paths = {"vocab": tmp_path / "encoder.json", "merges": tmp_path / "vocab.bpe"}
    paths["vocab"].write_bytes((source / "encoder_bpe_40000.json").read_bytes())
    paths["merges"].write_bytes((source / "vocab_40000.bpe").read_bytes())
    if change is None:
        paths[name].unlink()
    else:
        paths[name].write_text(change(paths[name].read_text()))
    with pytest.raises(DataError, match=message):
        import_openai(paths["vocab"], paths["merges"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
