"""The probe: the loss of one fixed row of tokens, stored in every checkpoint and compared whenever one is loaded.

The row depends on nothing but the vocabulary and the context length, so that any layout, an import and an export can
repeat it without the training data.
"""

from __future__ import annotations

import numpy as np
import torch

from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import mix
from gpt1_ds.parallel.engine import MicroBatch

POSITIONS = 64  # at most; enough to pass through every parameter of every block
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}  # relative; layouts sum in another order


def probe_batch(model: ModelConfig) -> MicroBatch:
    """One row [S, 1] of pseudo-random tokens, every position weighing the same."""
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    positions = min(model.context, POSITIONS)
    ids = mix(np.arange(1, positions + 2, dtype=np.uint64)) % np.uint64(model.vocab_size)
    tokens_TB = torch.from_numpy(ids.astype(np.int64)).unsqueeze(1)
    weights_SB = torch.full((positions, 1), 1 / positions)
    return MicroBatch(tokens_TB[:-1].contiguous(), torch.zeros(1, dtype=torch.int64), tokens_TB[1:], weights_SB)


def differs(stored: float, found: float, precisions: tuple[str, str]) -> bool:
    """Whether two probe losses, each computed in its precision, cannot be those of the same weights."""
    tolerance = max(TOLERANCE[precision] for precision in precisions)
    return not abs(stored - found) <= tolerance * max(1.0, abs(stored))
