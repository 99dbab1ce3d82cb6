from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.build import build
from gpt1_ds.data.verify import verify_dataset


@pytest.fixture
def folder(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> Path:
    return build([corpus], tokenizer_folder, tmp_path / "out", workers=1, validation=0.1, shard_tokens=5000).folder


def describe(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    description = json.loads((folder / "dataset.json").read_text())
    change(description)
    (folder / "dataset.json").write_text(json.dumps(description))


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_good_dataset(folder: Path) -> None:
    dataset = verify_dataset(str(folder))
    assert dataset.splits == ["train", "validation"]
    assert sum(dataset.split(name).documents for name in dataset.splits) == 42
    assert len(dataset.split("train").shards) > 1


def test_a_token_outside_the_vocabulary(folder: Path) -> None:
    overwrite(folder / "train-00001.bin", 246, np.array([600, 601], dtype="<u2").tobytes())
    with pytest.raises(DataError, match=r"train-00001.bin: byte 246: token id 600 is not in the vocabulary of 600"):
        verify_dataset(folder)


def test_a_flipped_bit(folder: Path) -> None:
    path = folder / "train-00000.bin"
    overwrite(path, 100, bytes([path.read_bytes()[100] ^ 1]))
    with pytest.raises(DataError, match=r"train-00000.bin: its sha256 differs"):
        verify_dataset(folder)


def test_a_changed_index(folder: Path) -> None:
    path = folder / "train-00000.idx"
    first, second = np.frombuffer(path.read_bytes()[34:42], dtype="<i4")
    overwrite(path, 34, np.array([first + 1, second - 1], dtype="<i4").tobytes())
    with pytest.raises(DataError, match=r"train-00000.idx: its sha256 differs"):
        verify_dataset(folder)


def test_a_document_that_does_not_end(folder: Path) -> None:
    """Hashes of a dataset that was built wrongly fit; the documents do not."""
    import hashlib

    path = folder / "validation-00000.bin"
    lengths = np.frombuffer((folder / "validation-00000.idx").read_bytes()[34:42], dtype="<i4")
    at = 2 * int(lengths[0] - 1)
    overwrite(path, at, b"\x07\x00")

    def change(description: dict[str, Any]) -> None:
        shard = description["splits"]["validation"]["shards"][0]
        shard["bin_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    describe(folder, change)
    with pytest.raises(DataError, match=rf"validation-00000.bin: byte {at}: document 0 does not end with <eod>"):
        verify_dataset(folder)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("tokens", "train lists"),
        ("documents", "train lists"),
        ("data_hash", "data_hash does not fit"),
        ("fingerprint", "not the tokenizer this dataset was built with"),
    ],
)
def test_a_description_that_does_not_fit(folder: Path, key: str, message: str) -> None:
    def change(description: dict[str, Any]) -> None:
        if key == "data_hash":
            description[key] = "0"
        elif key == "fingerprint":
            description["tokenizer"][key] = "0"
        else:
            description["splits"]["train"][key] += 1

    describe(folder, change)
    with pytest.raises(DataError, match=message):
        verify_dataset(folder)


def test_counts_of_a_shard(folder: Path) -> None:
    describe(folder, lambda description: description["splits"]["train"]["shards"][0].update(documents=0))
    with pytest.raises(DataError, match=r"train-00000.idx: \d+ documents, but dataset.json expects 0"):
        verify_dataset(folder)
