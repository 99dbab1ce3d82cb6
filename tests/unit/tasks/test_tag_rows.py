"""Tags as sequences of tokens: words of several pieces, sentences of several rows; and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.tasks.batches import build_batch
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Tagging
from gpt1_ds.tasks.tag_rows import TagRows, encode_tags
from tests.helpers.words import WordTokenizer

TAGS = Tagging("table", "single", ("B-x", "I-x", "O"), ("entity_f1",))


def tagged(words: str, tags: str = "") -> Example:
    return Example("s", tuple(words.split()), tags=tuple(tags.split()))


def test_the_first_piece_of_a_word_is_scored(wordpiece_folder: Path) -> None:
    tokenizer = load_tokenizer(wordpiece_folder)
    one = tagged("Unbelievably ​ good :-)", "B-x O I-x O")  # the second word is nothing for this tokenizer
    rows = encode_tags(replace(TAGS, symbols="separator"), [one], tokenizer, 32)
    at = np.flatnonzero(rows.words >= 0)
    assert rows.words[at].tolist() == [0, 2, 3]
    assert rows.tags[at].tolist() == [0, 1, 2]
    assert (np.diff(at) >= 1).all()
    scores = np.zeros((len(rows.tokens), 3), dtype=np.float32)
    scores[at[0], 0] = scores[at[1], 1] = 1
    scores[at[2], 2] = 1
    assert rows.answers([scores]).found.tolist() == [("B-x", "O", "I-x", "O")]


def test_a_long_sentence_has_every_word_in_one_row() -> None:
    words = " ".join(f"w{number}" for number in range(23))
    rows = encode_tags(TAGS, [tagged(words, " ".join(["O"] * 23)), tagged("a b", "B-x I-x")], WordTokenizer(), 10)
    assert isinstance(rows, TagRows)
    assert rows.lengths[:, 0].tolist() == [10, 10, 9, 4]
    assert rows.owners.tolist() == [0, 0, 0, 1]
    assert rows.words[rows.words >= 0].tolist() == [*range(23), 0, 1]
    assert rows.example_ids == ("s", "s")
    batch = build_batch(rows, np.arange(4))
    assert batch.counted == 25
    assert batch.token_targets is not None
    assert batch.token_targets.sum() == pytest.approx(1)
