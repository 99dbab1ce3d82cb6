"""Reading files that strangers made: nothing is executed, nothing is unpickled, and nothing is allocated before the
sizes that a file claims were held against the bytes that are there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from numpy.lib import format as npy
from torch import Tensor

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import parse_json

MAX_JSON_BYTES = 1 << 20  # of a config.json
MAX_HEADER_BYTES = 16 << 20  # of a safetensors file
MAX_HEADER_MEMORY = 128 << 20
MAX_TENSORS = 1 << 17
MAX_NPY_HEADER = 4096
MAX_DIMENSIONS = 8
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack")
ITEM_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2},
    **{"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8},
}
WEIGHT_TYPES = ("F32", "F16", "BF16")  # all of them fit fp32 without rounding
Floats = np.memmap[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class TensorFacts:
    """What the header of a safetensors file says about a tensor, checked against the file's size."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file


def inside(folder: Path, name: str) -> Path:
    """Returns the plain file `name` of `folder`. Raises CheckpointError when it is missing or lies somewhere else."""
    path = folder / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise CheckpointError(f"{folder}: names a file outside the folder: {name!r:.80}; refused")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; copy the whole folder")
    if path.resolve().parent != folder.resolve():
        raise CheckpointError(
            f"{path}: a link to {path.resolve()}, outside the folder; copy the files themselves (cp -rL)"
        )
    return path


def refuse_pickle(path: Path) -> None:
    """Raises CheckpointError for a file of pickled objects, which could run any program when it is read."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path}: may hold pickled objects, which run code when they are read, and is never opened; convert it "
            "where you trust it: the from_pretrained(FOLDER).save_pretrained(NEW) of its class writes safetensors"
        )


def read_object(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the JSON object in a file of at most `limit` bytes. Raises CheckpointError."""
    value = read_json(path, limit)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON object is expected, found a {type(value).__name__}")
    return value


def read_optional(folder: Path, name: str) -> dict[str, Any]:
    """Returns the JSON object in a file of the folder; an empty one where there is no such file. Raises
    CheckpointError.
    """
    return read_object(inside(folder, name)) if (folder / name).exists() else {}


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """Returns the JSON value in a file of at most `limit` bytes. Raises CheckpointError."""
    size = path.stat().st_size
    if size > limit:
        raise CheckpointError(f"{path}: {size} bytes is too large for this file (at most {limit})")
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({str(error).splitlines()[0]:.80})") from None


def safetensors_header(path: Path) -> dict[str, TensorFacts]:
    """Returns every tensor of a safetensors file: name -> type and shape. Raises CheckpointError for wrong sizes."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{path}: not a safetensors file: its header would be {length} bytes of the file's {size}; download it "
                "again"
            )
        text = file.read(length)
    try:
        entries = dict(parse_json(text, MAX_HEADER_MEMORY).items())
        entries.pop("__metadata__", None)
    except (ValueError, AttributeError):
        raise CheckpointError(f"{path}: damaged: its header is not readable; download it again") from None
    if len(entries) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(entries)} tensors are no model known here (at most {MAX_TENSORS})")
    return {name: _checked(path, name, entry, 8 + length, size) for name, entry in entries.items()}


def _checked(path: Path, name: str, entry: Any, first: int, size: int) -> TensorFacts:
    """Returns one entry of a header. Its bytes must be as many as its shape says, and within [first, size) of the
    file.
    """
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        plain = isinstance(dtype, str) and len(shape) <= MAX_DIMENSIONS
        plain = plain and all(type(number) is int and 0 <= number < 2**48 for number in numbers)
    except (TypeError, KeyError, ValueError):
        plain = False
    if not plain or dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: {name!r:.80} has no readable type, shape and place; download it again")
    if not begin <= end <= size - first or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise CheckpointError(
            f"{path}: {name!r:.80} {shape} {dtype} does not fit its place {begin}:{end} in {size - first} bytes; "
            "the file is damaged or cut short: download it again"
        )
    return TensorFacts(dtype, tuple(shape), first + begin)


def read_weights(path: Path, facts: Mapping[str, TensorFacts]) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, fp32 tensor) of the tensors named. Raises CheckpointError for other types and damaged files."""
    for name, fact in facts.items():
        if fact.dtype not in WEIGHT_TYPES:
            raise CheckpointError(f"{path}: {name} is {fact.dtype}; weights must be {', '.join(WEIGHT_TYPES)}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in facts:
                yield name, file.get_tensor(name).to(torch.float32)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged ({str(error).splitlines()[0]:.120}); download it again") from None


def npy_floats(path: Path) -> Floats:
    """Returns fp32 [n], mapped from a .npy file that must hold little-endian float32 in one dimension. Raises
    CheckpointError.

    numpy.load is not called: it would size an array by what the header claims.
    """
    with open(path, "rb") as file:
        try:
            version = npy.read_magic(file)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, _, dtype = read(file, max_header_size=MAX_NPY_HEADER)
        except (ValueError, KeyError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{path}: not a .npy file that can be read safely ({reason:.80})") from None
        offset = file.tell()
    if dtype.hasobject:
        raise CheckpointError(f"{path}: holds pickled objects, which run code when they are read; refused")
    if dtype.str != "<f4":
        raise CheckpointError(f"{path}: numbers of type {dtype.str}; the release is little-endian float32 (<f4)")
    size = path.stat().st_size
    if len(shape) != 1 or size != offset + 4 * shape[0]:
        raise CheckpointError(
            f"{path}: {size} bytes do not hold the shape {list(shape)} that its header claims; download it again"
        )
    return np.memmap(path, dtype=np.float32, mode="r", offset=offset, shape=shape)


def git_blob_id(path: Path) -> str:
    """Returns the id that git gives a file's contents: sha1 of `blob SIZE`, a zero byte, and the bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()
