"""Pairs that Megatron-core itself wrote become datasets without being rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder, get_bin_path, get_idx_path

from gpt1_ds.cli import main
from gpt1_ds.common.errors import DataError
from gpt1_ds.data.adopt import adopt
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.verify import verify_dataset
from tests.unit.data.formats import DOCUMENTS, write_jsonl


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


def write_pair(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: type = np.uint16) -> Path:
    """`documents` are lists of sequences of ids."""
    builder = IndexedDatasetBuilder(get_bin_path(str(prefix)), dtype=dtype)
    for sequences in documents:
        for ids in sequences:
            builder.add_item(torch.tensor(ids))
        builder.end_document()
    builder.finalize(get_idx_path(str(prefix)))
    return prefix


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[list[int]]]:
    cleaned = [text.removeprefix("\ufeff").replace("\r\n", "\n") for text in texts if text]
    return [[[*tokenizer.encode(text).tolist(), tokenizer.eod_id]] for text in cleaned]


def test_pairs_are_used_as_they_are(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    first = write_pair(tmp_path / "first", ids_of(tokenizer, DOCUMENTS[:90]))
    second = write_pair(tmp_path / "second", ids_of(tokenizer, DOCUMENTS[90:150]))
    held_out = write_pair(tmp_path / "held", ids_of(tokenizer, DOCUMENTS[150:]))
    dataset = adopt([first, f"{second}.bin"], tokenizer_folder, tmp_path / "out", [held_out])
    built = build([write_jsonl(tmp_path / "a.jsonl", DOCUMENTS[:150])], tokenizer_folder, tmp_path / "b", validation=0)
    ours, theirs = dataset.split("train"), built.split("train")
    assert np.array_equal(ours.read(0, ours.tokens), theirs.read(0, theirs.tokens))
    assert (ours.documents, ours.bytes) == (theirs.documents, theirs.bytes)
    assert list(ours.documents_of(0, ours.tokens)) == list(range(149))
    assert dataset.split("validation").documents == 50
    assert (tmp_path / "out" / "train-00001.bin").readlink() == tmp_path / "second.bin"
    verify_dataset(tmp_path / "out")
    one = adopt([first], tokenizer_folder, tmp_path / "linked")
    assert adopt([first], tokenizer_folder, tmp_path / "copied", copy=True).data_hash == one.data_hash
    first.with_suffix(".bin").unlink()
    assert not (tmp_path / "copied" / "train-00000.bin").is_symlink()
    assert Dataset(tmp_path / "copied").split("train").documents == 89
    with pytest.raises(DataError, match=r"train-00000\.bin: this shard of the dataset is missing"):
        Dataset(tmp_path / "linked")


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_links_to_pairs_of_other_names(
    ending: str, tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As stores by hash keep files; what is beside the file that a link leads to belongs to another pair."""
    write_pair(tmp_path / "other", ids_of(tokenizer, DOCUMENTS[:20]))
    pair = write_pair(tmp_path / "pair", ids_of(tokenizer, DOCUMENTS[20:90]))
    (tmp_path / "store").mkdir()
    (tmp_path / "links").mkdir()
    for name, kept, beside in (("bin", "3f", "idx"), ("idx", "a7", "bin")):
        Path(f"{pair}.{name}").rename(tmp_path / "store" / f"{kept}.{name}")
        Path(f"{tmp_path}/other.{beside}").rename(tmp_path / "store" / f"{kept}.{beside}")
        (tmp_path / "links" / f"books.{name}").symlink_to(f"../store/{kept}.{name}")
    monkeypatch.chdir(tmp_path)
    dataset = adopt([f"links/books{ending}"], tokenizer_folder, "out")
    assert dataset.split("train").documents == 70
    assert dataset.description["inputs"][0]["name"] == "books"
    assert (tmp_path / "out" / "train-00000.bin").readlink() == tmp_path / "store" / "3f.bin"
    verify_dataset(tmp_path / "out")


def test_a_link_whose_name_is_no_pairs(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", ids_of(tokenizer, DOCUMENTS[20:30]))
    (tmp_path / "newest").symlink_to(f"{pair}.bin")
    assert adopt([tmp_path / "newest"], tokenizer_folder, tmp_path / "out").split("train").documents == 10


def test_text_is_not_trained_on_and_held_out(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    pair, other = (write_pair(tmp_path / name, ids_of(tokenizer, DOCUMENTS[20:30])) for name in ("pair", "copy"))
    for held_out in (pair, f"{pair}.bin", other):
        with pytest.raises(DataError, match="pair: the same tokens are held out by --validation; leave the pair out"):
            adopt([pair], tokenizer_folder, tmp_path / "out", [held_out])
    assert not (tmp_path / "out").exists()
    assert adopt([pair, other], tokenizer_folder, tmp_path / "out").split("train").documents == 20


def test_several_sequences_are_sentences(tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path) -> None:
    documents = [[tokenizer.encode("One.").tolist(), [*tokenizer.encode(" Two.").tolist(), tokenizer.eod_id]]] * 3
    dataset = adopt([write_pair(tmp_path / "a", documents)], tokenizer_folder, tmp_path / "out")
    assert dataset.split_sentences
    assert dataset.split("train").sentence_counts["sentences"] == 6
    verify_dataset(tmp_path / "out")


def test_what_is_refused(
    tokenizer: Tokenizer, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: str) -> str:
        given = ["--tokenizer", str(tokenizer_folder), "--out", str(tmp_path / "out")]
        assert main(["data", "adopt", "--input", *words, *given]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert not (tmp_path / "out").exists()
        return line

    good, eod = ids_of(tokenizer, ["some text"]), tokenizer.eod_id
    large = str(write_pair(tmp_path / "large", [*good, [[5, tokenizer.vocab_size, eod]]]))
    at = 2 * (len(good[0][0]) + 1)
    assert f"large.bin: byte {at}: token id {tokenizer.vocab_size} is not in the tokenizer's vocabulary" in refused(
        large
    )
    open_ended = str(write_pair(tmp_path / "open", [*good, [[5, 6]]]))
    assert "open.bin: document 1 ends with the id 6, not with the tokenizer's end of a document" in refused(open_ended)
    pair = str(write_pair(tmp_path / "good", good))
    assert "ids; adopt them apart" in refused(pair, str(write_pair(tmp_path / "wide", good, np.int32)))
    assert "nothing: there is no nothing.bin and no .idx; name a pair" in refused(str(tmp_path / "nothing.bin"))
    Path(f"{pair}.bin").write_bytes(b"1234")
    assert "good.bin: 4 bytes, but its index expects" in refused(pair)
    Path(f"{pair}.idx").write_bytes(b"1234")
    assert "good.idx: 4 bytes, too short for its header of 34; make the pair again" in refused(pair)
