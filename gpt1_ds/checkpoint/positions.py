"""Learned positions of a model whose context is longer than that of the checkpoint it is filled from: the checkpoint's
come first; those after them are drawn as at the start of a run, or are the checkpoint's again from its first one on.

A run with the longer context would have drawn the same rows at its start, on every layout (model/names.py). The moments
of new rows are 0, like those of rows that no text has reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.config.sections import NewPositions
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.model.names import ParameterInfo, initial_value

POSITIONS = "positions.weight"


def stored_info(reader: StateReader, info: ParameterInfo, positions: NewPositions) -> ParameterInfo | None:
    """The positions as the checkpoint has them; None of another parameter, and where none is to be added."""
    if info.name != POSITIONS or positions == "refuse" or info.name not in reader.index:
        return None
    rows, *width = reader.index[info.name].shape
    return replace(info, shape=(rows, *width)) if rows < info.shape[0] and (*width,) == info.shape[1:] else None


def read_grown(
    reader: StateReader, kind: str, info: ParameterInfo, offset: int, count: int, positions: NewPositions, seed: int
) -> Tensor:
    """1-D fp32 [count]: what StateReader.read gives, and of positions that the checkpoint lacks the new ones. Raises
    CheckpointError.
    """
    stored = stored_info(reader, info, positions)
    if stored is None:
        return reader.read(kind, info, offset, count)
    known = stored.shape[0] * stored.shape[1]
    if kind == "master" and positions == "repeat":
        return reader.whole(kind, stored).reshape(-1)[torch.arange(offset, offset + count) % known]
    if kind == "master":
        values = initial_value(info, seed).reshape(-1)[offset : offset + count].clone()
    else:
        values = torch.zeros(count)
    kept = max(0, min(count, known - offset))
    if kept:
        values[:kept] = reader.read(kind, stored, offset, kept)
    return values


def as_stored(reader: StateReader, fragments: Iterable[Fragment], positions: NewPositions) -> Iterator[Fragment]:
    """The fragments without positions that the checkpoint lacks, so that their hashes are comparable with its own."""
    for fragment in fragments:
        stored = stored_info(reader, fragment.info, positions)
        if stored is None:
            yield fragment
        elif (kept := stored.shape[0] * stored.shape[1] - fragment.offset) > 0:
            yield Fragment(stored, fragment.offset, fragment.master[:kept])
