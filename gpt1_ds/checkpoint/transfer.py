"""The first weights of a fine-tuning run: part of a checkpoint's, whatever layout wrote it, and fresh ones.

As in the authors' code (`--n_transfer`): the embeddings and the first k blocks are taken over, the rest is drawn anew,
and all of it is trained. Rows of the special tokens are fresh too, unless the checkpoint has learned to use them. A
task's head is always fresh, but for the pooler of a model that was trained with one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gpt1_ds.architecture.layer import Layer
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.model.init import initial_value
from gpt1_ds.model.names import ParameterInfo

NOTHING = -1
TOKENS = "tokens.weight"
POOLER = "pooler."


def is_transferred(name: str, layer: Layer, layers: int | None, pooler: bool) -> bool:
    """Whether a parameter is taken over with the first `layers` blocks (-1: nothing, 0: embeddings, None: all), from a
    checkpoint with a `pooler` or without one.
    """
    if layer.kind == "task_head":
        return pooler and layers is None and name.startswith(POOLER)
    return layers is None or (layers != NOTHING and (layer.depth is None or layer.depth < layers))


def has_pooler(reader: StateReader) -> bool:
    """Whether a checkpoint's model was trained with one."""
    return any(name.startswith(POOLER) for name in reader.index)


def transfer(engine: Engine, folder: Path, layers: int | None, fresh_rows: Collection[int], seed: int) -> None:
    """Fill this rank's master weights from the checkpoint in `folder` and from `seed`. They are in the model after
    master_weights.publish, where ranks meet.

    Token rows that the checkpoint does not have, and those of the ids `fresh_rows`, are drawn. Raises CheckpointError
    when a parameter has another shape there.
    """
    reader = StateReader(folder)
    pooler = has_pooler(reader)
    for fragment in master_weights.fragments(engine):
        engine.progress("set-up")
        info, count = fragment.info, len(fragment.master)
        if not is_transferred(info.name, engine.architecture.layer_of[info.name], layers, pooler):
            values = initial_value(info, seed).reshape(-1)[fragment.offset : fragment.offset + count]
        elif info.name == TOKENS:
            values = _token_rows(reader, info, fresh_rows, seed).reshape(-1)[fragment.offset : fragment.offset + count]
        else:
            values = reader.read("master", info, fragment.offset, count)
        fragment.master.copy_(values)


def _token_rows(reader: StateReader, info: ParameterInfo, fresh_rows: Collection[int], seed: int) -> Tensor:
    """[rows of this rank, D]."""
    rows_VD = initial_value(info, seed).clone()
    stored = reader.index[TOKENS].shape[0] if TOKENS in reader.index else info.shape[0]
    have = replace(info, shape=(stored, *info.shape[1:]), start=min(info.start, stored), stop=min(info.stop, stored))
    count = have.stop - have.start
    if count > 0:
        old_VD = reader.read("master", have, 0, count * info.shape[1]).view(count, -1)
        kept = torch.tensor([row not in fresh_rows for row in range(have.start, have.stop)])
        rows_VD[:count][kept] = old_VD[kept]
    return rows_VD
