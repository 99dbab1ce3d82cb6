"""Initial weights, a pure function of (seed, canonical name).

    every matrix, embedding and task head        N(0, 0.02)      GPT-1's code: no scaling with depth
    every bias                                    0
    LayerNorm gain, bias                          1, 0

A parameter is drawn at its full size, whatever part a rank keeps, so all layouts start from the same bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.model.names import ParameterInfo

STANDARD_DEVIATION = 0.02


def initial_value(info: ParameterInfo, seed: int) -> Tensor:
    """fp32 tensor of `info.local_shape`: this rank's part of the initial parameter."""
    if info.name.endswith("norm.weight"):
        return torch.ones(info.local_shape)
    if info.name.rpartition(".")[2].startswith("bias"):
        return torch.zeros(info.local_shape)
    digest = hashlib.sha256(f"{seed}/{info.name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    whole = generator.standard_normal(info.shape, dtype=np.float32)
    whole *= np.float32(STANDARD_DEVIATION)
    value = torch.from_numpy(whole)
    return value if info.dim is None else value.narrow(info.dim, info.start, info.stop - info.start)
