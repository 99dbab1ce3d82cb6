"""What one rank writes of a checkpoint: a safetensors file of slices, its part of the index, and of every parameter's
hash.

A slice is two ranges: [start, stop) along the parameter's tensor-parallel dimension, and [offset, offset + count) of
that part flattened in row-major order. Read as three axes (outer, cut, inner), a part of width w = stop - start is
outer x w x inner; with outer == 1 (cut along the first dimension, or not at all) its elements are one run of the whole.

Keys are `<kind>/<parameter>/<start>:<stop>/<offset>` with kind master, exp_avg or (but for Muon's matrices) exp_avg_sq:
canonical name, range along the tensor-parallel dimension, first element of the flattened part. Any layout finds the
slices it needs in the index. Adafactor's exp_avg_sq_row and exp_avg_sq_col are vectors of a whole matrix, in one slice.

The hash of a parameter does not depend on how it is cut. It is the sum, modulo 2**64, of bits(row, column) * a(row) *
b(column) with pseudo-random odd a and b (multilinear hashing, Carter and Wegman 1979): each rank sums over what it has,
and the ranks' sums are added. It shows a wrong slice, a swap or a flipped bit after loading on another layout, and
copies that differ between ranks; against damage on disk files carry a sha256.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.checkpoint.manifest import file_facts
from gpt1_ds.common.errors import NodeError
from gpt1_ds.common.files import this_node
from gpt1_ds.data.windows import mix
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.engine.whole_parameters import FACTORS

Read = Callable[["Slice", int, int], Tensor]  # (slice, first, count) -> 1-D elements first .. of that slice


@dataclass(frozen=True)
class Slice:
    """Elements of one parameter as one rank held them. `file` and `key` say where they lie on disk."""

    start: int
    stop: int
    offset: int
    count: int
    file: str = ""
    key: str = ""


@dataclass(frozen=True)
class Geometry:
    """A parameter's shape as (outer, cut, inner) around its tensor-parallel dimension; uncut ones have cut == 1."""

    outer: int
    cut: int
    inner: int

    @classmethod
    def of(cls, shape: Sequence[int], dim: int | None) -> Geometry:
        if dim is None:
            return cls(1, 1, math.prod(shape))
        return cls(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))

    @property
    def elements(self) -> int:
        return self.outer * self.cut * self.inner


def assemble(geometry: Geometry, want: Slice, have: Sequence[Slice], read: Read) -> Tensor:
    """Returns a 1-D fp32 tensor of the `want.count` elements of `want`, from whichever slices of `have` hold them.

    Raises LookupError when an element is in none of them.
    """
    if geometry.outer == 1:  # the parameter is one run of elements, in which a slice begins at its range and offset
        placed = [(part.start * geometry.inner + part.offset, part) for part in have]
        return _flat(placed, want.start * geometry.inner + want.offset, want.count, read)
    row = (want.stop - want.start) * geometry.inner
    first, last = want.offset // row, -(-(want.offset + want.count) // row)
    block = torch.empty(last - first, row)
    filled = 0
    by_range: dict[tuple[int, int], list[tuple[int, Slice]]] = {}
    for part in have:
        by_range.setdefault((part.start, part.stop), []).append((part.offset, part))
    for (start, stop), placed in by_range.items():
        low, high = max(start, want.start), min(stop, want.stop)
        if low >= high:
            continue
        width = (stop - start) * geometry.inner
        source = _flat(placed, first * width, (last - first) * width, read).view(last - first, width)
        columns = slice((low - start) * geometry.inner, (high - start) * geometry.inner)
        block[:, (low - want.start) * geometry.inner : (high - want.start) * geometry.inner] = source[:, columns]
        filled += high - low
    if filled != want.stop - want.start:
        raise LookupError(f"columns {want.start}:{want.stop} are not all there")
    return block.view(-1)[want.offset - first * row : want.offset - first * row + want.count]


def _flat(placed: Sequence[tuple[int, Slice]], first: int, count: int, read: Read) -> Tensor:
    """Returns elements [first, first + count) of the run in which each slice begins at the position beside it."""
    out = torch.empty(count)
    reached = first
    for at, part in sorted(placed, key=lambda pair: pair[0]):
        low, high = max(reached, at), min(first + count, at + part.count)
        if low >= high:
            continue
        if low > reached:
            break
        out[low - first : high - first] = read(part, low - at, high - low)
        reached = high
    if reached < first + count:
        raise LookupError(f"elements {reached}:{first + count} are not there")
    return out


INDEX = "state/index.json"
_BLOCKS = {"cpu": 1 << 16, "cuda": 1 << 22}  # elements at a time: on a CPU their 64-bit copies stay in the cache


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


@dataclass(frozen=True)
class RankShard:
    """What one rank has written: a file of `bytes` and `sha256` (empty name: it has nothing to write), its part of the
    index, whose slices name no file yet, and of every parameter's hash.
    """

    file: str = ""
    bytes: int = 0
    sha256: str = ""
    index: Index = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)


def write_shard(folder: Path, file: str, fragments: list[Fragment]) -> RankShard:
    """Writes fragments into a checkpoint folder, as its file `file`. Raises NodeError where it reads back changed."""
    tensors, index = tensors_of(fragments)
    if not tensors:
        return RankShard()
    size, digest = write_tensors(folder / file, tensors)
    if file_facts(folder / file) != {"bytes": size, "sha256": digest}:
        problem = "reads back with other bytes than were written: the disk or the way to it has a fault"
        raise NodeError(this_node(), f"{folder / file}: {problem} (on {this_node()})")
    return RankShard(file, size, digest, index, hashes_of(fragments))


def merged_index(shards: Iterable[RankShard]) -> dict[str, Any]:
    """Returns the shards' parts of the index as one JSON object, each slice with the name of its file."""
    merged: Index = {}
    for shard in shards:
        for name, entry in shard.index.items():
            stored = merged.setdefault(name, StoredParameter(entry.shape, entry.dim))
            for kind, slices in entry.slices.items():
                stored.slices.setdefault(kind, []).extend(replace(item, file=shard.file) for item in slices)
    return {name: asdict(stored) for name, stored in merged.items()}


def slice_of(fragment: Fragment) -> Slice:
    info = fragment.info
    start, stop = (info.start, info.stop) if info.dim is not None else (0, 1)
    return Slice(start, stop, fragment.offset, len(fragment.master))


def tensors_of(fragments: list[Fragment]) -> tuple[dict[str, Tensor], Index]:
    """Returns the named tensors that a rank writes, and its part of the index (file names still empty)."""
    tensors: dict[str, Tensor] = {}
    index: Index = {}
    for fragment in fragments:
        info = fragment.info
        stored = index.setdefault(info.name, StoredParameter(list(info.shape), info.dim))
        for kind, values in fragment.saved.items():
            part = Slice(0, 1, 0, len(values)) if kind in FACTORS else slice_of(fragment)
            key = f"{kind}/{info.name}/{part.start}:{part.stop}/{part.offset}"
            tensors[key] = values
            stored.slices.setdefault(kind, []).append(replace(part, key=key))
    return tensors, index


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Writes fp32 tensors as a safetensors file, flushed to disk, and returns (bytes, sha256). One thread hashes while
    this one writes: both let go of the interpreter.
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


def hash_of(fragment: Fragment) -> Tensor:
    """Returns int64 []: what a fragment adds to its parameter's hash."""
    info = fragment.info
    return partial_hash(fragment.master, Geometry.of(info.shape, info.dim), slice_of(fragment))


def hashes_of(fragments: list[Fragment]) -> dict[str, int]:
    """Returns what a rank's fragments add to every parameter's hash."""
    hashes: dict[str, int] = {}
    for fragment in fragments:
        name = fragment.info.name
        hashes[name] = hashes.get(name, 0) + int(hash_of(fragment))
    return hashes


def total_hashes(parts: Iterable[dict[str, int]]) -> dict[str, str]:
    """Returns the ranks' parts of the parameters' hashes, added; in hexadecimal digits."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return {name: f"{sums[name] % 2**64:016x}" for name in sorted(sums)}


def partial_hash(values: Tensor, geometry: Geometry, part: Slice) -> Tensor:
    """Returns the part of a parameter's hash that the elements of one slice contribute, int64 [] on their device;
    `values` is 1-D, of 32 or 16 bits an element.
    """
    bits = values.detach().contiguous().view(torch.int32 if values.element_size() == 4 else torch.int16)
    rows = geometry.cut if geometry.outer == 1 else geometry.outer
    columns = geometry.inner if geometry.outer == 1 else geometry.cut * geometry.inner
    first_row, first_column = (part.start, 0) if geometry.outer == 1 else (0, part.start * geometry.inner)
    width = columns if geometry.outer == 1 else (part.stop - part.start) * geometry.inner
    a = _odd(rows, 1, bits.device)[first_row:]
    b = _odd(columns, 2, bits.device)[first_column : first_column + width]
    row, column = divmod(part.offset, width)
    head = min(part.count, (width - column) % width)  # up to the next whole row
    body = (part.count - head) // width
    total = _sum(bits[:head].view(1, -1), a[row : row + 1], b[column : column + head])
    row += column > 0
    total += _sum(bits[head : head + body * width].view(body, width), a[row:], b)
    tail = bits[head + body * width : part.count]
    return total + _sum(tail.view(1, -1), a[row + body : row + body + 1], b[: len(tail)])


def _sum(bits: Tensor, a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    rows, columns = bits.shape
    step = max(1, _BLOCKS[bits.device.type] // max(1, columns))
    for row in range(0, rows if columns else 0, step):
        products = bits[row : row + step].to(torch.int64).mul_(b)
        total += (products.sum(1) * a[row : row + len(products)]).sum()
    return total


@cache
def _odd(count: int, stream: int, device: torch.device) -> Tensor:
    """Returns int64 [count]: pseudo-random odd factors."""
    factors = mix(np.arange(count, dtype=np.uint64) + np.uint64(stream << 48)) | np.uint64(1)
    return torch.from_numpy(factors.view(np.int64)).to(device)
