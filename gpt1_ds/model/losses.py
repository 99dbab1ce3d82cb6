"""Losses on the last stage: (outputs, labels) -> fp32 scalar.

Shapes: S positions, B rows, V vocabulary columns on this rank, E examples of C rows each, K classes or choices.
"""

from __future__ import annotations

from typing import Protocol

import torch
from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from torch import Tensor

from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.task_head import HeadSpec


class Loss(Protocol):
    """A micro-batch's share of the batch's loss. `scores` are the task's, [E, K] of every call, newest last."""

    scores: list[Tensor]

    def __call__(self, outputs: Tensor | tuple[Tensor, Tensor], labels: tuple[Tensor, ...]) -> Tensor: ...


def make_loss(head: HeadSpec | None, tensor: TensorParallel) -> Loss:
    return LanguageLoss(tensor) if head is None else TaskLoss(head, tensor)


class LanguageLoss:
    """Next-token prediction. Outputs: logits [S, B, V]; labels: next tokens [S, B] and their weights [S, B]."""

    def __init__(self, tensor: TensorParallel) -> None:
        self.tensor, self.scores = tensor, []  # type: tuple[TensorParallel, list[Tensor]]

    def __call__(self, outputs: Tensor | tuple[Tensor, Tensor], labels: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(outputs, Tensor), "a language model has one output"
        labels_SB, weights_SB = labels
        return token_loss(outputs, labels_SB, weights_SB, self.tensor)


class TaskLoss:
    """L3 = L2 + lm_coefficient x L1 (equation 5 of the paper).

    Outputs: (logits [S, B, V], or anything where lm_coefficient is 0; scores [S, B, O]). Labels: next tokens [S, B] and
    their weights [S, B]; the extract token's position [B]; the target distribution [E, K] and the weight [E] of each
    example. As for `token_loss`, the weights come from the host and the whole global batch.
    """

    def __init__(self, spec: HeadSpec, tensor: TensorParallel) -> None:
        self.spec, self.tensor = spec, tensor
        self.scores: list[Tensor] = []

    def __call__(self, outputs: Tensor | tuple[Tensor, Tensor], labels: tuple[Tensor, ...]) -> Tensor:
        logits_SBV, scores_SBO = outputs
        labels_SB, lm_weights_SB, extract_B, targets_EK, weights_E = labels
        scores_EK = self.at_extract(scores_SBO, extract_B)
        self.scores.append(scores_EK.detach())
        loss_E = -(targets_EK * scores_EK.log_softmax(-1)).sum(-1)
        loss = (loss_E * weights_E).sum()
        if self.spec.lm_coefficient:
            loss = loss + self.spec.lm_coefficient * token_loss(logits_SBV, labels_SB, lm_weights_SB, self.tensor)
        return loss

    def at_extract(self, scores_SBO: Tensor, extract_B: Tensor) -> Tensor:
        """fp32 [E, K]: the scores of each example's classes or choices."""
        scores_BO = scores_SBO[extract_B, torch.arange(len(extract_B), device=extract_B.device)].float()
        if self.spec.choice:
            return scores_BO.view(-1, self.spec.sequences)
        return scores_BO.view(-1, self.spec.sequences, self.spec.outputs).sum(1)


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
