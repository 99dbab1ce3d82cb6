"""The published tokenizers, imported from the shared data."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.imports import import_gpt2, import_sentencepiece, import_wordpiece
from gpt1_ds.data.tokenizers.registry import import_openai
from tests.helpers.shared_data import shared_data


def published(name: str, out: Path) -> Tokenizer:
    """openai (2018), gpt2, bert or t5, in the folder `out`. Skips the test where its files are missing."""
    if name == "openai":
        source = shared_data("gpt1_bpe")
        return import_openai(source / "encoder_bpe_40000.json", source / "vocab_40000.bpe", out)
    if name == "gpt2":
        source = shared_data("gpt2_bpe")
        return import_gpt2(source / "encoder.json", source / "vocab.bpe", out)[0]
    if name == "bert":
        return import_wordpiece(shared_data("bert_wordpiece") / "vocab.txt", out)[0]
    assert name == "t5"
    return import_sentencepiece(shared_data("t5_spiece") / "spiece.model", out)[0]
