from __future__ import annotations

import json
import os
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data import dataset
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset, TokenStream
from gpt1_ds.data.shards import Shard


@pytest.fixture
def folder(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> Path:
    return build([corpus], tokenizer_folder, tmp_path / "out", workers=1, validation=0.1, shard_tokens=700).folder


@pytest.fixture
def stream(folder: Path) -> TokenStream:
    return Dataset(folder).split("train")


@pytest.fixture
def tokens(folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    """All training tokens, by way of the shards."""
    prefixes = sorted(path.with_suffix("") for path in folder.glob("train-*.bin"))
    return np.concatenate([Shard(prefix).tokens for prefix in prefixes])


def test_reading_within_and_across_shards(stream: TokenStream, tokens: np.ndarray) -> None:  # type: ignore[type-arg]
    assert stream.tokens == len(tokens)
    assert (stream.name, stream.dtype) == ("train", np.uint16)
    for start, count in [
        (0, 1),
        (0, 700),
        (690, 20),
        (699, 1),
        (700, 1),
        (5, 2500),
        (0, len(tokens)),
        (len(tokens), 0),
    ]:
        assert np.array_equal(stream.read(start, count), tokens[start : start + count])


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (0, -1), (0, 10**9)])
def test_reading_outside(stream: TokenStream, start: int, count: int) -> None:
    with pytest.raises(ValueError, match="are not within"):
        stream.read(start, count)


def test_tokens_cannot_be_changed_by_accident(stream: TokenStream) -> None:
    with pytest.raises(ValueError, match="read-only"):
        stream.read(0, 5)[0] = 1


def test_a_ring_closes_the_end_with_the_beginning(stream: TokenStream) -> None:
    assert stream.ring(5, 10) == [(5, 10)]
    assert stream.ring(stream.tokens - 10, 10) == [(stream.tokens - 10, 10)]
    assert stream.ring(stream.tokens - 3, 10) == [(stream.tokens - 3, 3), (0, 7)]


def test_ids_outside_the_vocabulary_name_shard_and_document(stream: TokenStream) -> None:
    tokens = stream.read(690, 20).astype(np.int32)
    stream.check(tokens, 690)
    document = stream.documents_of(705, 1)[0]
    for wrong in (stream.vocab_size, -1):
        tokens[15] = wrong
        with pytest.raises(DataError, match=rf"train-00001.bin: token id {wrong} in document {document} of train"):
            stream.check(tokens, 690)
    with pytest.raises(DataError, match=r"train-00000.bin: token id 9999 in document 0 of train"):
        stream.check(np.array([1, 1, 9999]), stream.tokens - 2)


def test_a_shard_that_was_cut_after_it_was_opened(stream: TokenStream, folder: Path) -> None:
    stream.read(700, 5)
    os.truncate(folder / "train-00001.bin", 100)
    assert len(stream.read(700, 50)) == 50
    with pytest.raises(DataError, match=r"train-00001.bin: was cut to 100 bytes while it was read; restore it"):
        stream.read(700, 51)


def test_open_shards_are_few(folder: Path, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    monkeypatch.setattr(dataset, "_open", lru_cache(2)(dataset._open.__wrapped__))
    stream = Dataset(folder).split("train")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert np.array_equal(stream.read(0, len(tokens)), tokens)
    assert len(stream.shards) > 3
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 5


def test_open_shards_of_all_datasets_together_are_few(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty datasets of many shards a process would else have more files open than it may."""
    monkeypatch.setattr(dataset, "_open", lru_cache(3)(dataset._open.__wrapped__))
    before = len(os.listdir("/proc/self/fd"))
    streams = [Dataset(folder).split("train") for _ in range(4)]
    for number in (0, 1, 0):
        for stream in streams:
            assert stream.shard(number) is stream.shard(number)
    assert len(os.listdir("/proc/self/fd")) <= before + 3 * 5
    del stream, streams
    assert len(os.listdir("/proc/self/fd")) <= before, "a dataset that is gone has no file open"


def test_documents_of_ranges(stream: TokenStream, tokens: np.ndarray) -> None:  # type: ignore[type-arg]
    ends = np.flatnonzero(tokens == 1) + 1
    assert stream.documents == len(ends)
    ranges = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    assert any(start // 700 != (stop - 1) // 700 for start, stop in ranges), "no document crosses shards"
    number_of = np.searchsorted(ends, np.arange(len(tokens)), side="right")
    for start, count in [(0, 1), (0, 5000), (650, 100), (int(ends[3]) - 1, 2), (len(tokens) - 1, 1)]:
        touched = sorted(set(number_of[start : start + count].tolist()))
        assert list(stream.documents_of(start, count)) == touched
    assert list(stream.documents_of(5, 0)) == []


def test_asking_for_what_is_not_there(stream: TokenStream) -> None:
    with pytest.raises(ValueError, match="is not within"):
        stream.documents_of(stream.tokens, 1)


def test_a_folder_that_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"not a dataset \(dataset.json is missing\); make one with `gpt1-ds data build`"
    ):
        Dataset(tmp_path)
    with pytest.raises(DataError) as caught:
        Dataset("nowhere")
    assert f"(there is no such folder in {Path.cwd()}); make one" in str(caught.value)


def test_the_dataset_that_was_meant_is_named(stream: TokenStream, tmp_path: Path) -> None:
    shutil.copytree(stream.folder, tmp_path / "books")
    with pytest.raises(DataError, match=rf"no such folder\); did you mean {tmp_path}/books\? Else make one"):
        Dataset(tmp_path / "boks")
    with pytest.raises(DataError, match=rf"is missing\); it holds datasets: {tmp_path}/books, for example"):
        Dataset(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "damaged"), ("[]", "damaged"), ('{"format": 2}', "format 2 is newer"), ('{"format": 1}', "damaged")],
)
def test_a_bad_description(folder: Path, text: str, message: str) -> None:
    (folder / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=message):
        Dataset(folder)


def test_missing_and_truncated_shards_are_found_on_opening(folder: Path) -> None:
    path = folder / "train-00001.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"train-00001.bin: 1398 bytes, but dataset.json expects 1400"):
        Dataset(folder)
    path.unlink()
    with pytest.raises(DataError, match=r"train-00001.bin: this shard of the dataset is missing"):
        Dataset(folder)


def test_an_index_that_says_otherwise(folder: Path) -> None:
    description = json.loads((folder / "dataset.json").read_text())
    description["splits"]["train"]["shards"][0]["sequences"] += 1
    (folder / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"train-00000.idx: holds 700 tokens in \d+ sequences"):
        Dataset(folder).split("train").read(0, 1)
