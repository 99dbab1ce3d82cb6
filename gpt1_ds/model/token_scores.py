"""What an evaluation asks of logits besides the loss: how often the highest one is that of the right token, and how
likely that is.

Shapes: T tokens, C of them in a chunk, V vocabulary columns on this rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gpt1_ds.model.kernels.cross_entropy import over_ranks
from gpt1_ds.model.layers import TensorParallel


@torch.no_grad()
def head_hits(
    chunks: Iterable[tuple[slice, Tensor]], labels_T: Tensor, weights_T: Tensor, real: int, tensor: TensorParallel
) -> Tensor:
    """Returns a fp32 scalar: sum of the weights of those tokens whose highest logit (of equal ones the first) is the
    label's.

    `chunks` are tokens and their logits [C, V], which are written over; the first `real` columns of a rank are those of
    the vocabulary.
    """
    hits = torch.zeros((), dtype=torch.float32, device=weights_T.device)
    for tokens, logits_CV in chunks:
        logits_CV[:, real:].fill_(torch.finfo(logits_CV.dtype).min)
        hits += ((_highest(logits_CV, tensor) == labels_T[tokens]) * weights_T[tokens]).sum()
    return hits


@torch.no_grad()
def token_scores(
    chunks: Iterable[tuple[slice, Tensor]], labels_T: Tensor, real: int, tensor: TensorParallel
) -> tuple[Tensor, Tensor]:
    """Returns (fp32 [T]: log-probability of each label in nats, bool [T]: whether its logit is the highest)."""
    logs, highest = [], []
    for tokens, logits_CV in chunks:
        logits_CV[:, real:].fill_(torch.finfo(logits_CV.dtype).min)
        highest.append(_highest(logits_CV, tensor) == labels_T[tokens])
        column_C = labels_T[tokens] - tensor.rank * logits_CV.shape[1]
        here_C = (column_C >= 0) & (column_C < logits_CV.shape[1])
        at_C1 = column_C.clamp(0, logits_CV.shape[1] - 1).unsqueeze(1)
        predicted_C = logits_CV.gather(1, at_C1)[:, 0].float().masked_fill(~here_C, 0.0)
        logsumexp_C = logits_CV.float().logsumexp(1)
        if tensor.size > 1:
            logsumexp_C, predicted_C = over_ranks(logsumexp_C, predicted_C, tensor)
        logs.append(predicted_C - logsumexp_C)
    return torch.cat(logs), torch.cat(highest)


def _highest(logits_CV: Tensor, tensor: TensorParallel) -> Tensor:
    """Returns int64 [C]: the column of each token's highest logit among those of all ranks; of equal ones the first."""
    highest_C, column_C = logits_CV.max(1)
    column_C += tensor.rank * logits_CV.shape[1]
    if tensor.size > 1:
        here_C = highest_C.clone()
        torch.distributed.all_reduce(highest_C, op=torch.distributed.ReduceOp.MAX, group=tensor.group)
        column_C.masked_fill_(here_C < highest_C, tensor.size * logits_CV.shape[1])  # after all columns
        torch.distributed.all_reduce(column_C, op=torch.distributed.ReduceOp.MIN, group=tensor.group)
    return column_C
