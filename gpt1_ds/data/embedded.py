"""The dataset that needs no data: the documentation inside CPython, tokenized and built once in the working folder."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.log import say
from gpt1_ds.config.data import EMBEDDED
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import DESCRIPTION

FOLDER = Path("data") / EMBEDDED
VOCAB_SIZE = 4096


def ensure(folder: Path = FOLDER) -> Path:
    """The embedded corpus as a dataset folder, built when it is not there yet."""
    if not (folder / DESCRIPTION).exists():
        from gpt1_ds.data.sentencepiece_train import train

        say(f"{folder}: building the embedded corpus, once")
        tokenizer = folder.with_name(f"{folder.name}-tokenizer")
        if not tokenizer.exists():
            train([EMBEDDED], tokenizer, VOCAB_SIZE)
        build([EMBEDDED], tokenizer, folder, validation=0.05)
    return folder
