"""How often the highest logit is that of the right token, for evaluations.

Shapes: T tokens, C of them in a chunk, D width, V vocabulary columns on this rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpt1_ds.model.cross_entropy import chunks
from gpt1_ds.model.layers import TensorParallel


@torch.no_grad()
def head_hits(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    labels_T: Tensor,
    weights_T: Tensor,
    real: int,
    tensor: TensorParallel,
    bias_V: Tensor | None = None,
) -> Tensor:
    """fp32 scalar: sum of the weights of those tokens whose highest logit (of equal ones the first) is the label's.

    Arguments are those of `head_loss`. It multiplies with the vocabulary once more, which only evaluations do.
    """
    hits = torch.zeros((), dtype=torch.float32, device=hidden_TD.device)
    for tokens, logits_CV in chunks(hidden_TD, weight_VD):
        torch.mm(hidden_TD[tokens], weight_VD.t(), out=logits_CV)
        if bias_V is not None:
            logits_CV += bias_V
        logits_CV[:, real:].fill_(torch.finfo(logits_CV.dtype).min)
        hits += ((_highest(logits_CV, tensor) == labels_T[tokens]) * weights_T[tokens]).sum()
    return hits


def _highest(logits_CV: Tensor, tensor: TensorParallel) -> Tensor:
    """int64 [C]: the column of each token's highest logit among those of all ranks; of equal ones the first."""
    highest_C, column_C = logits_CV.max(1)
    column_C += tensor.rank * logits_CV.shape[1]
    if tensor.size > 1:
        here_C = highest_C.clone()
        torch.distributed.all_reduce(highest_C, op=torch.distributed.ReduceOp.MAX, group=tensor.group)
        column_C.masked_fill_(here_C < highest_C, tensor.size * logits_CV.shape[1])  # after all columns
        torch.distributed.all_reduce(column_C, op=torch.distributed.ReduceOp.MIN, group=tensor.group)
    return column_C
