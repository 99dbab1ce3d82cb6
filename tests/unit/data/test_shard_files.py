from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data import shards
from gpt1_ds.data.shards import Shard, ShardSummary, ShardWriter, token_dtype


def write(prefix: Path, tokens: list[int], ends: list[int], pieces: int = 1) -> ShardSummary:
    """A shard written in `pieces` writes."""
    writer = ShardWriter(prefix, np.dtype(np.uint16))
    borders = np.linspace(0, len(tokens), pieces + 1).astype(int).tolist()
    for start, stop in itertools.pairwise(borders):
        inside = np.array([end - start for end in ends if start < end <= stop], dtype=np.int64)
        writer.write(np.array(tokens[start:stop]), inside, inside)
    return writer.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tokens = list(range(10, 30))
    summary = write(tmp_path / "x", tokens, [3, 4, 11, 20])
    shard = Shard(tmp_path / "x")
    assert shard.tokens.tolist() == tokens
    assert shard.lengths.tolist() == [3, 1, 7, 9]
    assert shard.documents.tolist() == [0, 1, 2, 3, 4]
    assert shard.at(slice(1, 4))[1].tolist() == [4, 11, 20]
    assert (summary.tokens, summary.sequences) == (20, 4)
    for kind, size, digest in (
        ("bin", summary.bin_size, summary.bin_sha256),
        ("idx", summary.idx_size, summary.idx_sha256),
    ):
        content = (tmp_path / f"x.{kind}").read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, digest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("pieces", [2, 3, 7, 20])
def test_the_size_of_writes_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    tokens, ends = list(range(20)), [3, 4, 11]
    assert write(tmp_path / "a", tokens, ends, pieces) == write(tmp_path / "b", tokens, ends)
    monkeypatch.setattr(shards, "BLOCK", 2)
    assert write(tmp_path / "c", tokens, ends) == write(tmp_path / "b", tokens, ends)


def test_tokens_behind_the_last_end_are_a_sequence(tmp_path: Path) -> None:
    write(tmp_path / "x", [1, 2, 3, 4, 5], [2])
    assert Shard(tmp_path / "x").lengths.tolist() == [2, 3]


def test_finding_sequences(tmp_path: Path) -> None:
    write(tmp_path / "x", list(range(20)), [3, 4, 11, 20])
    shard = Shard(tmp_path / "x")
    assert [shard.sequence_at(token) for token in (0, 2, 3, 4, 10, 11, 19)] == [0, 0, 1, 2, 2, 3, 3]
    assert [places.tolist() for places in shard.at(slice(4))] == [[0, 3, 4, 11], [3, 4, 11, 20]]


def test_an_empty_shard(tmp_path: Path) -> None:
    write(tmp_path / "x", [], [])
    shard = Shard(tmp_path / "x")
    assert (len(shard.tokens), shard.sequences, shard.documents.tolist()) == (0, 0, [0])


def test_dtype_follows_the_vocabulary() -> None:
    assert token_dtype(65499) == np.uint16
    assert token_dtype(65500) == np.int32


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x.bin", lambda content: content[:-1], r"x.bin: 39 bytes, but its index expects 40"),
        ("x.bin", lambda content: content + b"\0\0", r"x.bin: 42 bytes, but its index expects 40"),
        ("x.idx", lambda content: content[:-8], r"x.idx: \d+ bytes, but its header expects \d+"),
        ("x.idx", lambda content: content[:20], r"x.idx: 20 bytes, too short for its header of 34"),
        ("x.idx", lambda content: b"Y" + content[1:], r"x.idx: not an index of tokens"),
        ("x.idx", lambda content: content[:17] + b"\x07" + content[18:], r"dtype code 7"),
        ("x.idx", lambda content: None, r"x.idx: missing"),
        ("x.bin", lambda content: None, r"x.bin: missing"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, change: Callable[[bytes], bytes | None], message: str) -> None:
    write(tmp_path / "x", list(range(20)), [3, 20])
    changed = change((tmp_path / name).read_bytes())
    (tmp_path / name).unlink()
    if changed is not None:
        (tmp_path / name).write_bytes(changed)
    with pytest.raises(DataError, match=message):
        Shard(tmp_path / "x")
