"""The tensors of a checkpoint: one safetensors file per writing rank and one JSON index of where every slice lies.

Keys are `<kind>/<parameter>/<start>:<stop>/<offset>` with kind master, exp_avg or exp_avg_sq: canonical name, range
along the tensor-parallel dimension, first element of the flattened part. Any layout finds the slices it needs in the
index.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.external import TensorFacts, safetensors_header
from gpt1_ds.checkpoint.slices import Geometry, Slice, assemble, partial_hash
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.model.names import ParameterInfo

INDEX = "state/index.json"
LEAST_INDEX = 128 << 20  # bytes of memory


@dataclass
class StoredParameter:
    """What the index says about one parameter; `slices` by kind."""

    shape: list[int]
    dim: int | None
    slices: dict[str, list[Slice]] = field(default_factory=dict)

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.shape, self.dim)


Index = dict[str, StoredParameter]


def slice_of(fragment: Fragment) -> Slice:
    info = fragment.info
    start, stop = (info.start, info.stop) if info.dim is not None else (0, 1)
    return Slice(start, stop, fragment.offset, len(fragment.master))


def hash_of(fragment: Fragment) -> Tensor:
    """int64 []: what a fragment adds to its parameter's hash."""
    info = fragment.info
    return partial_hash(fragment.master, Geometry.of(info.shape, info.dim), slice_of(fragment))


def tensors_of(fragments: list[Fragment]) -> tuple[dict[str, Tensor], Index]:
    """The named tensors that a rank writes, and its part of the index (file names still empty)."""
    tensors: dict[str, Tensor] = {}
    index: Index = {}
    for fragment in fragments:
        info, part = fragment.info, slice_of(fragment)
        stored = index.setdefault(info.name, StoredParameter(list(info.shape), info.dim))
        for kind, values in {"master": fragment.master, **fragment.moments}.items():
            key = f"{kind}/{info.name}/{part.start}:{part.stop}/{part.offset}"
            tensors[key] = values
            stored.slices.setdefault(kind, []).append(Slice(part.start, part.stop, part.offset, part.count, "", key))
    return tensors, index


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Write fp32 tensors as a safetensors file, flushed to disk; (bytes, sha256). One thread hashes while this one
    writes: both let go of the interpreter.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for key, tensor in tensors.items():
        size = tensor.numel() * 4
        header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file, ThreadPoolExecutor(1, "sha256") as hasher:
        for chunk in (struct.pack("<Q", len(text)), text):
            digest.update(chunk)
            file.write(chunk)
        for tensor in tensors.values():
            data = tensor.detach().cpu().contiguous().numpy().data.cast("B")
            hashed = hasher.submit(digest.update, data)
            file.write(data)
            hashed.result()  # so that at most one tensor's copy is held
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + at, digest.hexdigest()


def merge(parts: list[tuple[str, Index]]) -> Index:
    """The ranks' parts of the index as one; each part comes with its file's name."""
    merged: Index = {}
    for file, part in parts:
        for name, entry in part.items():
            stored = merged.setdefault(name, StoredParameter(entry.shape, entry.dim))
            for kind, slices in entry.slices.items():
                stored.slices.setdefault(kind, []).extend(replace(item, file=file) for item in slices)
    return merged


class StateReader:
    """Reads the slices that a rank wants out of a checkpoint folder, whatever layout wrote it.

    Nothing that the files say is believed before it is checked: what is read is bounded by what the model wants.
    Raises CheckpointError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        held = sum(path.stat().st_size for path in (folder / "state").glob("*.safetensors"))
        most = max(LEAST_INDEX, held)  # bytes of memory: no more than the tensors, but of tiny models
        entries = manifest.read_json(folder / INDEX, "its tensors cannot be found", most)
        try:
            self.index: Index = {name: _parameter(entry) for name, entry in entries.items()}
        except (KeyError, TypeError, AttributeError, ValueError):
            raise CheckpointError(f"{folder / INDEX}: damaged: not an index of tensors") from None
        self._headers: dict[str, dict[str, TensorFacts]] = {}

    def has(self, kind: str) -> bool:
        return all(kind in stored.slices for stored in self.index.values())

    def read(self, kind: str, info: ParameterInfo, offset: int, count: int) -> Tensor:
        """1-D fp32 [count]: elements `offset` .. of this rank's part of a parameter."""
        stored = self.index.get(info.name)
        if stored is None or tuple(stored.shape) != info.shape or stored.dim != info.dim:
            found = "does not have it" if stored is None else f"has shape {stored.shape}"
            raise CheckpointError(
                f"{self.folder}: the model wants {info.name} {list(info.shape)}, the checkpoint {found}"
            )
        start, stop = (info.start, info.stop) if info.dim is not None else (0, 1)
        try:
            return assemble(stored.geometry, Slice(start, stop, offset, count), stored.slices[kind], self._elements)
        except (LookupError, OSError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{self.folder}: {kind} of {info.name} cannot be read: {error}") from None

    def whole(self, kind: str, info: ParameterInfo) -> Tensor:
        """A parameter at its full shape, whichever part `info` is of."""
        stop = info.shape[info.dim] if info.dim is not None else 0
        return self.read(kind, replace(info, start=0, stop=stop), 0, math.prod(info.shape)).view(info.shape)

    def _elements(self, part: Slice, first: int, count: int) -> Tensor:
        path = self.folder / part.file
        if part.file not in self._headers:
            if not manifest.is_inside(self.folder, part.file) or not path.is_file():
                raise LookupError(f"{part.file} is not a plain file of this checkpoint")
            self._headers[part.file] = safetensors_header(path)
        stored = self._headers[part.file][part.key]
        if stored.dtype != "F32" or stored.shape != (part.count,):
            raise LookupError(f"{part.key} in {part.file} is not F32 [{part.count}]")
        # read, not mapped: a mapped file counts as memory of the process until it is closed
        return torch.from_numpy(np.fromfile(path, "<f4", count, offset=stored.offset + 4 * first))


def _parameter(entry: dict[str, Any]) -> StoredParameter:
    """Raises an exception of one kind or another for what no `write_tensors` has written."""
    shape, dim = list(entry["shape"]), entry["dim"]
    if not _are_counts(shape) or not (dim is None or (type(dim) is int and 0 <= dim < len(shape))):
        raise ValueError("no shape")
    slices = {kind: [Slice(**item) for item in items] for kind, items in entry["slices"].items()}
    ends = 1 if dim is None else shape[dim]
    for part in (part for parts in slices.values() for part in parts):
        counts = _are_counts((part.start, part.stop, part.offset, part.count))
        if not counts or not part.start <= part.stop <= ends:
            raise ValueError("no slice")
        if not (isinstance(part.file, str) and isinstance(part.key, str)):
            raise TypeError("no place")
    return StoredParameter(shape, dim, slices)


def _are_counts(numbers: Iterable[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 2**62 for number in numbers)
