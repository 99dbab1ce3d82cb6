"""Cross-entropy over a vocabulary that is cut over the tensor-parallel ranks.

Shapes: S positions, B rows, V vocabulary columns on this rank.
"""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from torch import Tensor

from gpt1_ds.model.layers import TensorParallel


def token_loss(logits_SBV: Tensor, labels_SB: Tensor, weights_SB: Tensor, tensor: TensorParallel) -> Tensor:
    """fp32 scalar: sum over tokens of weight x cross-entropy (nats).

    The weights are worked out on the host from the whole global batch, so that the mean over micro-batches and
    data-parallel ranks that DeepSpeed takes is the mean over the batch's tokens, however the batch is cut.
    """
    loss_SB = _CrossEntropy.apply(logits_SBV, labels_SB, tensor)
    return (loss_SB * weights_SB).sum()  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    """Megatron's vocab-parallel cross-entropy with the group passed in. Overwrites fp32 logits."""

    @staticmethod
    def forward(ctx, logits_SBV, labels_SB, tensor):  # type: ignore[no-untyped-def]
        parts = VocabParallelCrossEntropy
        ctx.dtype = logits_SBV.dtype
        logits_SBV, maximum_SB = parts.calculate_logits_max(logits_SBV)
        _reduce(maximum_SB, tensor, torch.distributed.ReduceOp.MAX)
        columns = logits_SBV.shape[-1]
        first = tensor.rank * columns
        other_SB, label_T, predicted_SB, total_SB, exponents_SBV = parts.calculate_predicted_logits(
            logits_SBV, labels_SB, maximum_SB, first, first + columns
        )
        _reduce(predicted_SB, tensor, torch.distributed.ReduceOp.SUM)
        _reduce(total_SB, tensor, torch.distributed.ReduceOp.SUM)
        softmax_SBV, loss_SB = parts.calculate_cross_entropy_loss(exponents_SBV, predicted_SB, total_SB)
        ctx.save_for_backward(softmax_SBV, other_SB, label_T)
        return loss_SB

    @staticmethod
    def backward(ctx, grad_SB):  # type: ignore[no-untyped-def]
        softmax_SBV, other_SB, label_T = ctx.saved_tensors
        parts = VocabParallelCrossEntropy
        grad_2d, row_T, here_T, grad_SBV = parts.prepare_gradient_calculation_operands(softmax_SBV, other_SB)
        grad_SBV = parts.calculate_gradients(grad_2d, row_T, label_T, here_T, grad_SBV, grad_SB)
        return grad_SBV.to(ctx.dtype), None, None


def _reduce(value: Tensor, tensor: TensorParallel, operation: torch.distributed.ReduceOp.RedOpType) -> None:
    if tensor.size > 1:
        torch.distributed.all_reduce(value, op=operation, group=tensor.group)
