"""Reading the tensors of a checkpoint, whatever layout has written them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.external import TensorFacts, safetensors_header
from gpt1_ds.checkpoint.shard import INDEX, Geometry, Index, Slice, StoredParameter, assemble
from gpt1_ds.checkpoint.verify import is_inside
from gpt1_ds.common.errors import CheckpointError, DamagedError
from gpt1_ds.model.names import ParameterInfo

LEAST_INDEX = 128 << 20  # bytes of memory


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
            raise DamagedError(f"{folder / INDEX}: damaged: not an index of tensors") from None
        self._headers: dict[str, dict[str, TensorFacts]] = {}

    @property
    def has_moments(self) -> bool:
        """Returns whether there is what an optimizer keeps, beside the master weights."""
        return all(stored.slices.keys() - {"master"} for stored in self.index.values())

    def read(self, kind: str, info: ParameterInfo, offset: int, count: int) -> Tensor:
        """Returns 1-D fp32 [count]: elements `offset` .. of this rank's part of a parameter."""
        stored = self._stored(info)
        start, stop = (info.start, info.stop) if info.dim is not None else (0, 1)
        return self._assembled(kind, info, stored.geometry, Slice(start, stop, offset, count))

    def factor(self, kind: str, info: ParameterInfo, count: int) -> Tensor:
        """Returns 1-D fp32 [count]: one of the optimizer's FACTORS of a matrix."""
        self._stored(info)
        return self._assembled(kind, info, Geometry.of([count], None), Slice(0, 1, 0, count))

    def _stored(self, info: ParameterInfo) -> StoredParameter:
        stored = self.index.get(info.name)
        if stored is None or tuple(stored.shape) != info.shape or stored.dim != info.dim:
            found = "does not have it" if stored is None else f"has shape {stored.shape}"
            raise CheckpointError(
                f"{self.folder}: the model wants {info.name} {list(info.shape)}, the checkpoint {found}"
            )
        return stored

    def _assembled(self, kind: str, info: ParameterInfo, geometry: Geometry, want: Slice) -> Tensor:
        try:
            return assemble(geometry, want, self.index[info.name].slices[kind], self._elements)
        except (LookupError, OSError, RuntimeError, TypeError) as error:
            raise DamagedError(f"{self.folder}: {kind} of {info.name} cannot be read: {error}") from None

    def whole(self, kind: str, info: ParameterInfo) -> Tensor:
        """Returns a parameter at its full shape, whichever part `info` is of."""
        stop = info.shape[info.dim] if info.dim is not None else 0
        return self.read(kind, replace(info, start=0, stop=stop), 0, math.prod(info.shape)).view(info.shape)

    def _elements(self, part: Slice, first: int, count: int) -> Tensor:
        path = self.folder / part.file
        if part.file not in self._headers:
            if not is_inside(self.folder, part.file) or not path.is_file():
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
