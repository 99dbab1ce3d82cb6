"""The tensors of a checkpoint: one safetensors file per writing rank and one JSON index of where every slice lies.

Keys are `<kind>/<parameter>/<start>:<stop>/<offset>` with kind master, exp_avg or exp_avg_sq: canonical name, range
along the tensor-parallel dimension, first element of the flattened part. Any layout finds the slices it needs in the
index.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt1_ds.checkpoint.slices import Geometry, Slice
from gpt1_ds.engine.master_weights import MOMENTS, Fragment

INDEX = "state/index.json"
KINDS = ("master", *MOMENTS)


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


def to_json(index: Index) -> dict[str, Any]:
    return {name: asdict(stored) for name, stored in index.items()}
