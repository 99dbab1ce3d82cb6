"""The ids that transformers gives a text by an exported tokenizer, also where the text has the names of symbols."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import Model, train_tokenizer
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers.hard_texts import HARD
from tests.unit.data.corpora import sentences

NAMES = [
    "<eod>",
    "a <eod><start> b <start",
    " <delimiter> <extract>",
    "<unk> <pad> <mask><0x41><0xFF>",
    "<<eod>><eod >",
]


@pytest.mark.parametrize("tags", ["", "<em>A</em>< start >\n", "<e d> <s t> <u k> <p a> <0x4>\n"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "gpt2-bpe", "wordpiece"])
def test_names_of_symbols_are_ordinary_text_for_both(kind: Model, tags: str, tmp_path: Path) -> None:
    """Also where the vocabulary has pieces that begin as the names do."""
    from transformers import AutoTokenizer

    (tmp_path / "one.txt").write_text("\n".join(sentences(200)) + tags * 500)
    train_tokenizer([tmp_path / "one.txt"], tmp_path / "tok", vocab_size=360, model=kind)
    ours = load_tokenizer(tmp_path / "tok")
    for name, value in tokenizer_files(ours, 512).items():
        (tmp_path / name).write_text(json.dumps(value))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*NAMES, *HARD, tags * 3, *sentences(20, seed=1)]:
        assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text).tolist(), text[:200]
    assert theirs.convert_tokens_to_ids(["<eod>"]) == [ours.eod_id] or kind in ("gpt2-bpe", "wordpiece")


def test_a_kind_that_the_format_does_not_hold_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("\n".join(sentences(200)))
    ours = train_tokenizer([tmp_path / "one.txt"], tmp_path / "tok", vocab_size=360)
    ours.kind = "bytes"
    with pytest.raises(DataError, match=r"kind bytes cannot be written as tokenizer\.json"):
        tokenizer_files(ours, 512)
