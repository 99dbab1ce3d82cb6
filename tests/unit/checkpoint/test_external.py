"""Strangers' files: sizes are held against the bytes that are there before anything is read."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from gpt1_ds.checkpoint import external
from gpt1_ds.common.errors import CheckpointError


def header_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}}


def test_a_good_file_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5).half(), "c": torch.randn(5).bfloat16(), "e": torch.zeros(0)}
    safetensors.torch.save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    header = external.safetensors_header(tmp_path / "x")
    assert {name: facts.shape for name, facts in header.items()} == {n: tuple(t.shape) for n, t in tensors.items()}
    read = dict(external.read_weights(tmp_path / "x", header))
    assert all(torch.equal(read[name], value.float()) for name, value in tensors.items())
    assert {value.dtype for value in read.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        (b"", b"", None, "damaged"),
        (b"{}", b"", 10**12, "not a safetensors file"),
        (b"{}", b"", 2**64 - 1, "not a safetensors file"),
        (b"{}" + b" " * 100, b"", 103, "not a safetensors file"),
        (b"not json", b"", None, "damaged"),
        (b"[" * 100_000, b"", None, "damaged"),
        (b"[1]", b"", None, "damaged"),
        (entry(), b"x" * 15, None, "cut short"),
        (entry(shape=[2, 3]), b"x" * 16, None, "does not fit"),
        (entry(shape=[2**40, 2**40]), b"x" * 16, None, "does not fit"),
        (entry(shape=[-2, -2]), b"x" * 16, None, "no readable type"),
        (entry(shape=[2.0, 2]), b"x" * 16, None, "no readable type"),
        (entry(shape=[1] * 1000), b"x" * 16, None, "no readable type"),
        (entry(shape=4), b"x" * 16, None, "no readable type"),
        (entry(data_offsets=[16, 0]), b"x" * 16, None, "does not fit"),
        (entry(data_offsets=[0]), b"x" * 16, None, "no readable type"),
        (entry(dtype="F99"), b"x" * 16, None, "no readable type"),
        ({"w": 3}, b"x" * 16, None, "no readable type"),
    ],
)
def test_a_header_that_cannot_be(header: Any, data: bytes, length: int | None, message: str, tmp_path: Path) -> None:
    path = header_file(tmp_path / "x.safetensors", header, data, length)
    with pytest.raises(CheckpointError, match=message) as caught:
        external.safetensors_header(path)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_a_file_shorter_than_its_length_field(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x80\x02}")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        external.safetensors_header(tmp_path / "x")


def test_weights_are_floating_point_numbers_that_fit(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(2, dtype=torch.float64)}, tmp_path / "x")
    with pytest.raises(CheckpointError, match="w is F64"):
        list(external.read_weights(tmp_path / "x", external.safetensors_header(tmp_path / "x")))


def test_overlapping_tensors_are_noticed(tmp_path: Path) -> None:
    both = {name: entry()["w"] for name in ("w", "v")}
    path = header_file(tmp_path / "x.safetensors", both, b"x" * 16)
    with pytest.raises(CheckpointError, match="damaged"):
        list(external.read_weights(path, external.safetensors_header(path)))


def test_links_and_names_that_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("{}")
    (folder / "here").write_text("{}")
    (folder / "inward").symlink_to("here")
    (folder / "outward").symlink_to(tmp_path / "secret")
    (folder / "nowhere").symlink_to(tmp_path / "nothing")
    assert external.inside(folder, "inward").read_text() == "{}"
    for name, message in (
        ("outward", "outside the folder; copy the files"),
        ("nowhere", "no such file"),
        ("missing", "no such file"),
        ("../secret", "outside the folder"),
        (str(tmp_path / "secret"), "outside the folder"),
        ("..", "outside the folder"),
        ("", "outside the folder"),
    ):
        with pytest.raises(CheckpointError, match=message):
            external.inside(folder, name)


@pytest.mark.parametrize(
    "content", [b"[]", b"3", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a": "' + b"x" * 2_000_000 + b'"}']
)
def test_objects_are_small_json(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config.json: ") as caught:
        external.read_object(tmp_path / "config.json")
    assert "\n" not in str(caught.value)


def saved(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def test_numbers_are_mapped(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(1000).astype("<f4")
    (tmp_path / "p.npy").write_bytes(saved(numbers))
    assert np.array_equal(external.npy_floats(tmp_path / "p.npy"), numbers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (saved(np.array([{"a": 1}], dtype=object), allow_pickle=True), "pickled objects"),
        (saved(np.zeros(4, dtype=">f4")), "type >f4"),
        (saved(np.zeros(4, dtype="<f8")), "type <f8"),
        (saved(np.zeros(4, dtype="<i4")), "type <i4"),
        (saved(np.zeros((2, 2), dtype="<f4")), "do not hold the shape"),
        (saved(np.zeros(4, dtype="<f4"))[:-1], "do not hold the shape"),
        (saved(np.zeros(4, dtype="<f4")) + b"x", "do not hold the shape"),
        (saved(np.zeros(4, dtype="<f4")).replace(b"(4,)", b"(9999999999999,)"), "do not hold|not a .npy"),
        (b"\x80\x04K\x01.", "not a .npy"),
        (b"", "not a .npy"),
        (b"\x93NUMPY\x03\x00" + b"\xff" * 40, "not a .npy"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 65535, "not a .npy"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "not a .npy"),
    ],
)
def test_arrays_that_are_not_the_releases(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.npy").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        external.npy_floats(tmp_path / "p.npy")
    assert "\n" not in str(caught.value)


def test_blob_ids_are_gits(tmp_path: Path) -> None:
    """What `git hash-object` prints for this file."""
    (tmp_path / "x").write_bytes(b"hello\n" * 300_000)
    assert external.git_blob_id(tmp_path / "x") == "57e70e9b5b2247e5529ab84c3cc9124092f93ff5"
