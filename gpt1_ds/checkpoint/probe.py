"""The probe: the loss of one fixed row of tokens, stored in every checkpoint and compared whenever one is loaded.

The row depends on nothing but the vocabulary and the context length, so that any layout, an import and an export can
repeat it without the training data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.objectives.base import Objective

TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}  # relative; layouts sum in another order


def probe_batch(objective: Objective, model: ModelConfig) -> MicroBatch:
    """Returns the objective's fixed example; dropout is off."""
    batch = objective.probe(model)
    return MicroBatch.of(batch, np.zeros(batch.inputs[0].shape[1], dtype=np.int64))


def probe_loss(engine: Engine, model: ModelConfig) -> float:
    """Returns the probe under the engine's present weights, in its precision; all ranks call this."""
    with torch.compiler.set_stance("force_eager"):  # one row now and then is not worth a compiled graph of its own
        return engine.evaluate([probe_batch(engine.objective, model)])


def check(folder: Path, stored: dict[str, Any], loss: float, precision: str) -> None:
    """Raises CheckpointError when the loss just computed cannot be that of the weights that were saved."""
    tolerance = max(TOLERANCE[precision], TOLERANCE[stored["precision"]])
    if not abs(stored["loss"] - loss) <= tolerance * max(1.0, abs(stored["loss"])):
        raise CheckpointError(
            f"{folder}: the probe's loss is {loss!r}, at saving it was {stored['loss']!r}: the weights are as saved "
            "but this program computes another loss with them; compare env.json with the present versions"
        )
