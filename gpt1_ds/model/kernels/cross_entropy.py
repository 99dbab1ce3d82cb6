"""The tied head and its cross-entropy as one operation, a chunk of tokens at a time.

Logits are by far the largest tensor of a small model. Here only a chunk's are there at once; their gradient is written
over them and multiplied out at once, so the backward pass has nothing left to do but to scale its result. (The loss is
the end of the graph, so its gradient is one number.) Within a chunk the softmax goes a few rows at a time, so that its
fp32 numbers stay in the CPU's cache; on a GPU a kernel reads each logit twice and writes it once.

Shapes: T tokens, C of them in a chunk, R rows of a block, D width, V vocabulary columns on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt1_ds.architecture.blocking import LOSS_LOGITS, chunk_tokens
from gpt1_ds.model import kernels, products
from gpt1_ds.model.layers import TensorParallel

HALF_UNIT = 4096.0  # gradients in fp16 are multiplied with it until the loss scale is known: they would vanish


class Target(NamedTuple):
    """What the softmax of a token is compared with: `label` on the right column and `each` on every column of the
    vocabulary, 1 in all (label smoothing: Szegedy et al. 2016, section 7).
    """

    label: float = 1.0
    each: float = 0.0

    @classmethod
    def smoothed(cls, smoothing: float, vocab_size: int) -> Target:
        return cls(1 - smoothing, smoothing / vocab_size)


SHARP = Target()


def head_loss(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    labels_T: Tensor,
    weights_T: Tensor,
    real: int,
    tensor: TensorParallel,
    bias_V: Tensor | None = None,
    target: Target = SHARP,
    each_T: Tensor | None = None,
) -> Tensor:
    """Returns fp32: the sum over tokens of weight x cross-entropy (nats) of `hidden_TD @ weight_VD.T + bias_V`.

    Columns are cut over the tensor-parallel ranks; those after the `real` first ones of this rank are padding. The
    gradient of `hidden_TD` is this rank's part of a sum over the ranks. `each_T` receives every token's cross-entropy.
    """
    differentiate = torch.is_grad_enabled()
    arguments = (hidden_TD, weight_VD, bias_V, labels_T, weights_T, real, tensor, target, differentiate, each_T)
    return _HeadLoss.apply(*arguments)  # type: ignore[no-any-return]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_TD, weight_VD, bias_V, labels_T, weights_T, real, tensor, target, differentiate, each_T):  # type: ignore[no-untyped-def]
        loss = torch.zeros((), dtype=torch.float32, device=hidden_TD.device)
        ctx.unit = HALF_UNIT if hidden_TD.dtype == torch.float16 else 1.0
        grad_hidden_TD = torch.empty_like(hidden_TD) if differentiate else None
        grad_weight_VD = None
        grad_bias_V = torch.zeros_like(bias_V) if bias_V is not None and differentiate else None
        factor_VD = products.wide(weight_VD)
        for tokens, logits_CV in chunk_logits(hidden_TD, factor_VD, bias_V):
            unit = ctx.unit if differentiate else None
            loss_C = chunk_loss(logits_CV, labels_T[tokens], weights_T[tokens], real, tensor, unit, target)
            loss += (loss_C * weights_T[tokens]).sum()
            if each_T is not None:
                each_T[tokens] = loss_C
            if grad_hidden_TD is None:
                continue
            products.product(logits_CV, factor_VD, grad_hidden_TD[tokens])
            if grad_bias_V is not None:
                grad_bias_V += logits_CV.sum(0)
            rows_VC, columns_CD = products.wide(logits_CV).t(), products.wide(hidden_TD[tokens])
            if grad_weight_VD is None:
                grad_weight_VD = rows_VC @ columns_CD
            else:
                grad_weight_VD.addmm_(rows_VC, columns_CD)
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        ctx.gradients = (grad_hidden_TD, grad_weight_VD, grad_bias_V)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "the graph of a loss is walked back once"
        factor = grad / ctx.unit
        if grad.device.type != "cpu" or float(factor) != 1.0:  # to look at it would make a GPU wait
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        return (*gradients, None, None, None, None, None, None, None)


def chunk_loss(
    logits_CV: Tensor,
    labels_C: Tensor,
    weights_C: Tensor,
    real: int,
    tensor: TensorParallel,
    unit: float | None,
    target: Target = SHARP,
) -> Tensor:
    """Returns the loss [C] of each token; writes its gradient, times `unit`, over the logits unless `unit` is None."""
    if (kernel := kernels.module("cross_entropy_triton", logits_CV.device)) is not None:
        return _loss_by_kernel(kernel, logits_CV, labels_C, weights_C, real, tensor, unit, target)
    logits_CV[:, real:].fill_(torch.finfo(logits_CV.dtype).min)  # not -inf: a rank may hold padding alone
    return _Softmax(logits_CV, labels_C, weights_C, real, tensor, target).loss(unit)


def _loss_by_kernel(
    kernel: ModuleType,
    logits_CV: Tensor,
    labels_C: Tensor,
    weights_C: Tensor,
    real: int,
    tensor: TensorParallel,
    unit: float | None,
    target: Target,
) -> Tensor:
    first = tensor.rank * logits_CV.shape[1]
    if tensor.size == 1 and unit is not None:
        logsumexp_C, predicted_C = kernel.sums_and_gradient(logits_CV, labels_C, weights_C, first, real, unit, *target)
    else:
        logsumexp_C, predicted_C = kernel.sums(logits_CV, labels_C, first, real, *target)
    if tensor.size > 1:
        logsumexp_C, predicted_C = over_ranks(logsumexp_C, predicted_C, tensor)
        if unit is not None:
            kernel.gradient(logits_CV, labels_C, weights_C, logsumexp_C, first, real, unit, *target)
    return logsumexp_C - predicted_C  # type: ignore[no-any-return]


class _Softmax:
    """The softmax of one chunk's logits [C, V], which become their gradient, by torch."""

    def __init__(
        self, logits_CV: Tensor, labels_C: Tensor, weights_C: Tensor, real: int, tensor: TensorParallel, target: Target
    ) -> None:
        self.logits_CV, self.real, self.tensor, self.target = logits_CV, real, tensor, target
        self.weights_C1 = weights_C.unsqueeze(1)
        column_C1 = labels_C.unsqueeze(1) - tensor.rank * logits_CV.shape[1]
        self.here_C1 = (column_C1 >= 0) & (column_C1 < logits_CV.shape[1])
        self.column_C1 = column_C1.clamp(0, logits_CV.shape[1] - 1)

    def loss(self, unit: float | None) -> Tensor:
        logits_CV, alone = self.logits_CV, self.tensor.size == 1
        predicted_C1 = logits_CV.gather(1, self.column_C1).float().masked_fill_(~self.here_C1, 0.0)
        predicted_C1.mul_(self.target.label)
        logsumexp_C1 = torch.empty_like(predicted_C1)
        for rows, block_RV in _row_blocks(logits_CV):
            probability_RV = torch.softmax(block_RV, -1)
            # at the largest logit, where the probability is well above 0
            torch.sub(block_RV.amax(-1, True), probability_RV.amax(-1, True).log_(), out=logsumexp_C1[rows])
            if self.target.each:
                predicted_C1[rows] += self.target.each * block_RV[:, : self.real].sum(-1, True)
            if alone and unit is not None:
                self._write(probability_RV, rows, self.weights_C1[rows] * unit)
        if not alone:
            here_C1 = logsumexp_C1
            logsumexp_C1, predicted_C1 = over_ranks(logsumexp_C1, predicted_C1, self.tensor)
            share_C1 = (here_C1 - logsumexp_C1).exp_()  # of all ranks' probability
            if unit is not None:
                for rows, block_RV in _row_blocks(logits_CV):
                    probability_RV = torch.softmax(block_RV, -1).mul_(share_C1[rows])
                    self._write(probability_RV, rows, self.weights_C1[rows] * unit)
        return (logsumexp_C1 - predicted_C1).squeeze(1)

    def _write(self, probability_RV: Tensor, rows: slice, weight_R1: Tensor) -> None:
        probability_RV.mul_(weight_R1)
        probability_RV.scatter_add_(1, self.column_C1[rows], -self.target.label * weight_R1 * self.here_C1[rows])
        if self.target.each:
            probability_RV[:, : self.real] -= self.target.each * weight_R1
        self.logits_CV[rows].copy_(probability_RV)


def chunk_logits(hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yields (tokens, their logits [C, V] of the type of the states, in memory that the next chunk takes over)."""
    count, weight_VD = len(hidden_TD), products.wide(weight_VD)
    length = chunk_tokens(count, len(weight_VD) * hidden_TD.element_size(), weight_VD.device.type)
    memory_CV = hidden_TD.new_empty(length, len(weight_VD))
    for first in range(0, count, length):
        tokens = slice(first, min(first + length, count))
        logits_CV = memory_CV[: tokens.stop - first]
        products.product(hidden_TD[tokens], weight_VD.t(), logits_CV, bias_V)
        yield tokens, logits_CV


def _row_blocks(logits_CV: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields (rows, their logits in fp32 [R, V], in memory that the next block takes over)."""
    tokens, columns = logits_CV.shape
    height = min(tokens, max(1, LOSS_LOGITS[logits_CV.device.type] // columns))
    memory_RV = torch.empty(height, columns, dtype=torch.float32, device=logits_CV.device)
    for first in range(0, tokens, height):
        rows = slice(first, min(first + height, tokens))
        yield rows, memory_RV[: rows.stop - first].copy_(logits_CV[rows])


def over_ranks(logsumexp: Tensor, predicted: Tensor, tensor: TensorParallel) -> tuple[Tensor, Tensor]:
    """Returns both over the columns of all ranks, from those over this rank's; one element for each token."""
    maximum = logsumexp.clone()
    torch.distributed.all_reduce(maximum, op=torch.distributed.ReduceOp.MAX, group=tensor.group)
    sums = torch.stack([(logsumexp - maximum).exp_(), predicted])
    torch.distributed.all_reduce(sums, group=tensor.group)
    return sums[0].log_().add_(maximum), sums[1]
