"""The gradient norm, precise enough for layouts to agree on it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_BLOCK = 1 << 18


def square_sum(tensors: Iterable[Tensor]) -> Tensor:
    """fp32 scalar: the sum of squares of fp32 tensors (at least one).

    On a processor block by block: torch's norm adds 2**24 numbers up in one fp32 sum and loses 0.3 % of it there, which
    would make the norm depend on how the layout cuts a matrix. It is also half as fast.
    """
    sums = []
    for tensor in tensors:
        values = tensor.detach().reshape(-1).float()
        if values.is_cuda:
            sums.append(torch.linalg.vector_norm(values).square())
        else:
            sums += [torch.dot(block, block) for block in values.split(_BLOCK)]
    return torch.stack(sums).sum()
