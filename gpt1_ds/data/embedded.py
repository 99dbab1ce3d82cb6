"""The dataset that needs no data: the documentation inside CPython, tokenized and built once in the working folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpt1_ds.common.log import say
from gpt1_ds.config import Config
from gpt1_ds.config.data import EMBEDDED
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import DESCRIPTION

FOLDER = Path("data") / EMBEDDED
VOCAB_SIZE = 4096


def ensure(folder: Path = FOLDER) -> Path:
    """The embedded corpus as a dataset folder, built when it is not there yet."""
    if not (folder / DESCRIPTION).exists():
        from gpt1_ds.data.tokenizers.sentencepiece_train import train

        say(f"{folder}: building the embedded corpus, once")
        tokenizer = folder.with_name(f"{folder.name}-tokenizer")
        if not tokenizer.exists():
            train([EMBEDDED], tokenizer, VOCAB_SIZE)
        build([EMBEDDED], tokenizer, folder, validation=0.05)
    return folder


def needs_embedded_corpus(config: Config) -> bool:
    """Whether `python-docs` is a data source, and no folder of that name."""
    return any(source.path == EMBEDDED and not Path(EMBEDDED).exists() for source in config.data.path)


def with_embedded_corpus(config: Config, build: bool = True) -> Config:
    """The configuration with the folder of the embedded corpus in the place of `python-docs`; the folder is made where
    it is missing, unless `build` is false.
    """
    if not needs_embedded_corpus(config):
        return config
    folder = str(ensure() if build else FOLDER)
    path = [replace(source, path=folder if source.path == EMBEDDED else source.path) for source in config.data.path]
    return replace(config, data=replace(config.data, path=path))
