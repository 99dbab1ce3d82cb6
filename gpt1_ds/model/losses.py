"""Losses on the last stage: (outputs, labels) -> fp32 scalar.

Shapes: S positions, B rows, V vocabulary columns on this rank, E examples of C rows each, K classes or choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.task_head import HeadSpec

BLOCK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}  # fp32 logits held at once
_LOWEST = torch.finfo(torch.float32).min


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
    """Cross-entropy (nats) of logits whose columns are cut over the tensor-parallel ranks, a few rows at a time, so
    that fp32 numbers of a block stay in the processor's cache. The gradient is written over the logits.

    Megatron's VocabParallelCrossEntropy computes the same and holds all of the softmax in fp32.
    """

    @staticmethod
    def forward(ctx, logits_SBV, labels_SB, tensor):  # type: ignore[no-untyped-def]
        logits_TV = logits_SBV.view(-1, logits_SBV.shape[-1])  # T tokens
        columns = logits_TV.shape[1]
        column_T1 = labels_SB.reshape(-1, 1) - tensor.rank * columns
        here_T1 = (column_T1 >= 0) & (column_T1 < columns)
        column_T1 = column_T1.clamp(0, columns - 1)
        logsumexp_T = torch.empty(len(logits_TV), dtype=torch.float32, device=logits_TV.device)
        for rows, block_RV in _row_blocks(logits_TV):
            maximum_R1 = block_RV.amax(-1, keepdim=True).clamp_(min=_LOWEST)  # a rank may hold nothing but padding
            total_R = block_RV.sub_(maximum_R1).exp_().sum(-1)
            logsumexp_T[rows] = total_R.log_().add_(maximum_R1.squeeze(1))
        predicted_T = logits_TV.gather(1, column_T1).float().masked_fill_(~here_T1, 0.0).squeeze(1)
        if tensor.size > 1:
            logsumexp_T, predicted_T = _over_ranks(logsumexp_T, predicted_T, tensor)
        ctx.save_for_backward(logits_SBV, column_T1, here_T1, logsumexp_T)
        return (logsumexp_T - predicted_T).view(labels_SB.shape)

    @staticmethod
    def backward(ctx, grad_SB):  # type: ignore[no-untyped-def]
        logits_SBV, column_T1, here_T1, logsumexp_T = ctx.saved_tensors
        logits_TV = logits_SBV.view(-1, logits_SBV.shape[-1])
        grad_T1 = grad_SB.reshape(-1, 1)
        for rows, block_RV in _row_blocks(logits_TV):
            block_RV.sub_(logsumexp_T[rows].unsqueeze(1)).exp_().mul_(grad_T1[rows])
            block_RV.scatter_add_(1, column_T1[rows], -grad_T1[rows] * here_T1[rows])
            logits_TV[rows].copy_(block_RV)
        return logits_SBV, None, None


def _row_blocks(logits_TV: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(rows, their logits in fp32 [R, V], in memory that the next block takes over)."""
    tokens, columns = logits_TV.shape
    height = min(tokens, max(1, BLOCK_ELEMENTS[logits_TV.device.type] // columns))
    memory_RV = torch.empty(height, columns, dtype=torch.float32, device=logits_TV.device)
    for first in range(0, tokens, height):
        rows = slice(first, min(first + height, tokens))
        yield rows, memory_RV[: rows.stop - first].copy_(logits_TV[rows])


def _over_ranks(logsumexp_T: Tensor, predicted_T: Tensor, tensor: TensorParallel) -> tuple[Tensor, Tensor]:
    """Both over the columns of all ranks, from those over this rank's."""
    maximum_T = logsumexp_T.clone()
    torch.distributed.all_reduce(maximum_T, op=torch.distributed.ReduceOp.MAX, group=tensor.group)
    sums_2T = torch.stack([(logsumexp_T - maximum_T).exp_(), predicted_T])
    torch.distributed.all_reduce(sums_2T, group=tensor.group)
    return sums_2T[0].log_().add_(maximum_T), sums_2T[1]
