"""Our shards read by megatron-core, and megatron-core's read by us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.datasets import indexed_dataset

from gpt1_ds.data.shards import Shard, ShardWriter, token_dtype

DOCUMENTS = [[5, 6, 7], [8], list(range(100, 400)), [65000 % 600, 2]]


def ours(prefix: Path, vocab_size: int) -> None:
    writer, ends = ShardWriter(prefix, token_dtype(vocab_size)), np.cumsum([len(document) for document in DOCUMENTS])
    writer.write(np.concatenate(DOCUMENTS), ends, ends)
    writer.close()


def theirs(prefix: Path, vocab_size: int) -> None:
    dtype = indexed_dataset.DType.optimal_dtype(vocab_size)
    builder = indexed_dataset.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in DOCUMENTS:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(f"{prefix}.idx")


@pytest.mark.parametrize("vocab_size", [600, 65499, 65500, 100_000])
def test_the_same_bytes(tmp_path: Path, vocab_size: int) -> None:
    ours(tmp_path / "ours", vocab_size)
    theirs(tmp_path / "theirs", vocab_size)
    for kind in ("bin", "idx"):
        assert (tmp_path / f"ours.{kind}").read_bytes() == (tmp_path / f"theirs.{kind}").read_bytes()


def test_megatron_reads_ours(tmp_path: Path) -> None:
    ours(tmp_path / "x", 600)
    dataset = indexed_dataset.IndexedDataset(str(tmp_path / "x"))
    assert [sequence.tolist() for sequence in dataset[:]] == DOCUMENTS
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4]


def test_we_read_megatrons_with_several_sequences_in_a_document(tmp_path: Path) -> None:
    builder = indexed_dataset.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.int32)
    builder.add_document(torch.tensor([1, 2, 3, 4, 5]), [2, 3])
    builder.add_document(torch.tensor([6]), [1])
    builder.finalize(str(tmp_path / "x.idx"))
    shard = Shard(tmp_path / "x")
    assert shard.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert shard.lengths.tolist() == [2, 3, 1]
    assert shard.documents.tolist() == [0, 2, 3]
    assert shard.at(slice(3))[1].tolist() == [2, 5, 6]
