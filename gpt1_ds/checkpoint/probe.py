"""The probe: the loss of one fixed row of tokens, stored in every checkpoint and compared whenever one is loaded.

The row depends on nothing but the vocabulary and the context length, so that any layout, an import and an export can
repeat it without the training data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import mix
from gpt1_ds.parallel.engine import Engine, MicroBatch

POSITIONS = 64  # at most; enough to pass through every parameter of every block
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}  # relative; layouts sum in another order


def probe_batch(model: ModelConfig, head: HeadSpec | None = None) -> MicroBatch:
    """One row [S, 1] of pseudo-random tokens, every position weighing the same; with a task's `head` one example of it,
    all its rows alike, the last position extracted and every class as right as the others.
    """
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    positions = min(model.context, POSITIONS)
    ids = mix(np.arange(1, positions + 2, dtype=np.uint64)) % np.uint64(model.vocab_size)
    tokens_TB = torch.from_numpy(ids.astype(np.int64)).unsqueeze(1)
    rows, task = 1, ()  # type: tuple[int, tuple[torch.Tensor, ...]]
    if head is not None:
        rows, classes = head.sequences, head.sequences if head.choice else head.outputs
        task = (torch.full((rows,), positions - 1), torch.full((1, classes), 1 / classes), torch.ones(1))
    tokens_SB, labels_SB = (part.repeat(1, rows) for part in (tokens_TB[:-1], tokens_TB[1:]))
    weights_SB = torch.full((positions, rows), 1 / (positions * rows))
    return MicroBatch(tokens_SB, torch.zeros(rows, dtype=torch.int64), labels_SB, weights_SB, task)


def probe_loss(engine: Engine, model: ModelConfig) -> float:
    """The probe under the engine's present weights, in its precision; all ranks call this."""
    with torch.compiler.set_stance("force_eager"):  # one row now and then is not worth a compiled graph of its own
        return engine.evaluate([probe_batch(model, engine.head)])


def check(folder: Path, stored: dict[str, Any], loss: float, precision: str) -> None:
    """Raise CheckpointError when the loss just computed cannot be that of the weights that were saved."""
    tolerance = max(TOLERANCE[precision], TOLERANCE[stored["precision"]])
    if not abs(stored["loss"] - loss) <= tolerance * max(1.0, abs(stored["loss"])):
        raise CheckpointError(
            f"{folder}: the probe's loss is {loss!r}, at saving it was {stored['loss']!r}: the weights are as saved "
            "but are computed with differently here; compare env.json with the present versions"
        )
