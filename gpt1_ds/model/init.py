"""Initial weights, a pure function of (seed, canonical name).

    every matrix, embedding and task head        N(0, 0.02)      GPT-1's code: no scaling with depth
    every bias                                    0
    LayerNorm gain, bias                          1, 0
    matrices of an LSTM's cell                    U(-1/sqrt(U), 1/sqrt(U)) of U units (torch.nn.LSTM)
    bias of its forget gates                      1      Gers et al. 2000, Jozefowicz et al. 2015

A parameter is drawn at its full size, whatever part a rank keeps, so all layouts start from the same bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.model.names import ParameterInfo

STANDARD_DEVIATION = 0.02
CELL = "lstm.cell."
FORGETTING = f"{CELL}bias_ih_l0"


def initial_value(info: ParameterInfo, seed: int) -> Tensor:
    """fp32 tensor of `info.local_shape`: this rank's part of the initial parameter."""
    if info.name.endswith("norm.weight"):
        return torch.ones(info.local_shape)
    if info.name.rpartition(".")[2].startswith("bias"):
        bias = torch.zeros(info.local_shape)
        if info.name == FORGETTING:  # nn.LSTM's gates are input, forget, cell, output; its second bias adds 0
            bias.chunk(4)[1].fill_(1.0)
        return bias
    digest = hashlib.sha256(f"{seed}/{info.name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    if info.name.startswith(CELL):
        whole = (2 * generator.random(info.shape, dtype=np.float32) - 1) / np.float32((info.shape[0] // 4) ** 0.5)
    else:
        whole = generator.standard_normal(info.shape, dtype=np.float32)
        whole *= np.float32(STANDARD_DEVIATION)
    value = torch.from_numpy(whole)
    return value if info.dim is None else value.narrow(info.dim, info.start, info.stop - info.start)
