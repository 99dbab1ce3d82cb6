from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import train_tokenizer
from tests.unit.data.corpora import sentences, write_corpus


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text("\n".join(sentences(2000, seed=7)))
    train_tokenizer([folder / "text.txt"], folder / "sp", vocab_size=600)
    return folder / "sp"


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")
