"""Tokenizer folders of earlier versions are read for ever: these were written, and their ids noted, before GPT-2's BPE,
WordPiece and T5's unigram model came from one `tokenizer.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.data.tokenizers.registry import load_tokenizer

FOLDERS = Path(__file__).parent / "tokenizers-format-2"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_id_and_byte_is_what_it_was(name: str) -> None:
    tokenizer, expected = load_tokenizer(FOLDERS / name), EXPECTED[name]
    assert tokenizer.fingerprint == expected["fingerprint"], "a run with this tokenizer resumes"
    assert tokenizer.special_ids.values() == expected["roles"]
    for text, ids, decoded in expected["texts"]:
        assert tokenizer.encode(text).tolist() == ids, ascii(text)
        assert tokenizer.decode(ids) == decoded, ascii(text)
    assert tokenizer.encode_part(" karo\n mila", "a", True).tolist() == expected["part"]
    assert tokenizer.token_bytes().tolist() == expected["bytes"]
    assert "".join(map(str, tokenizer.begins_word().astype(int))) == expected["begins"]
