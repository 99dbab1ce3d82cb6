"""The tokenizer of the 2018 release from its two files."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import OPENAI, Tokenizer
from gpt1_ds.data.tokenizers.openai_bpe import (
    MERGES,
    SPECIAL_IDS,
    TEXT_IDS,
    VOCABULARY,
    check_merges,
    read_merges,
    read_vocabulary,
)
from gpt1_ds.data.tokenizers.registry import publish_tokenizer


def import_openai(vocab: Path | str, merges: Path | str, out: Path | str) -> Tokenizer:
    """Publish the released encoder_bpe_40000.json and vocab_40000.bpe as the tokenizer folder `out`.

    Raises DataError when they are missing or not the 40,478 ids and 40,000 merges of the release.
    """
    contents = []
    for path in (Path(vocab), Path(merges)):
        if not path.is_file():
            raise DataError(f"{path}: no such file; download it from github.com/openai/finetune-transformer-lm/model")
        contents.append(path.read_bytes())
    encoder = read_vocabulary(Path(vocab), contents[0])
    check_merges(Path(merges), read_merges(Path(merges), contents[1]), encoder)
    files = dict(zip((VOCABULARY, MERGES), contents, strict=True))
    return publish_tokenizer(Path(out), OPENAI, TEXT_IDS + 4, SPECIAL_IDS, files)
