"""Losses on the last stage: (outputs, labels) -> fp32 scalar.

Shapes: S positions, B rows, D width, V vocabulary rows on this rank, E examples of C rows each, K classes or choices.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.model.cross_entropy import chunk_logits, head_loss
from gpt1_ds.model.hits import head_hits, token_scores
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.sentence_loss import SentenceLoss


class Loss(Protocol):
    """A micro-batch's share of the batch's loss. `scores` are the task's, [E, K] of every call, newest last.

    `measures` are there of every evaluation of masked text, fp32 scalars by name, weighted as the loss is: `loss`, of
    the masked tokens alone, and `masked_accuracy`; with pairs also `pair_loss` and `pair_accuracy`.
    """

    scores: list[Tensor]
    measures: list[dict[str, Tensor]]

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor: ...


def make_loss(head: HeadSpec | None, vocab_size: int, tensor: TensorParallel) -> Loss:
    if head is not None and head.loss is not None:
        return SentenceLoss(head)
    language = LanguageLoss(vocab_size, tensor)
    if head is None:
        return language
    return TextLoss(vocab_size, tensor) if head.kind == "text" else TaskLoss(head, language)


class LanguageLoss:
    """Tokens are predicted. Outputs: the last states [S, B, D], the tied weights [V, D] that make logits of them, and
    of a masked head the logits' bias [V]. Labels: tokens [S, B] and their weights [S, B]; or, where few positions
    count, which ones of a row [M, B], and their tokens and weights [M, B].

    The weights are worked out on the host from the whole global batch, so that the mean over micro-batches and
    data-parallel ranks that DeepSpeed takes is the mean over the batch's tokens, however the batch is cut.
    """

    def __init__(self, vocab_size: int, tensor: TensorParallel) -> None:
        self.vocab_size, self.tensor = vocab_size, tensor
        self.scores: list[Tensor] = []
        self.measures: list[dict[str, Tensor]] = []

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        hidden_SBD, weight_VD, *biases = outputs
        *places, labels_SB, weights_SB = labels
        for at_MB in places:
            hidden_SBD = hidden_SBD[at_MB, torch.arange(at_MB.shape[1], device=at_MB.device)]  # [M, B, D]
        first = self.tensor.rank * len(weight_VD)
        real = min(max(0, self.vocab_size - first), len(weight_VD))
        hidden_TD = hidden_SBD.reshape(-1, hidden_SBD.shape[-1])
        bias_V = biases[0] if biases else None
        labels_T, weights_T = labels_SB.flatten(), weights_SB.flatten()
        loss = head_loss(hidden_TD, weight_VD, labels_T, weights_T, real, self.tensor, bias_V)
        if places and not torch.is_grad_enabled():  # an evaluation, which may multiply with the vocabulary once more
            chunks = chunk_logits(hidden_TD, weight_VD, bias_V)
            hits = head_hits(chunks, labels_T, weights_T, real, self.tensor)
            self.measures.append({"loss": loss, "masked_accuracy": hits})
        return loss


class TextLoss(LanguageLoss):
    """That of a language model; an evaluation also scores each row, [B, 2]: the log-probability of its counted tokens
    (nats), and 1 where each has the highest logit, so that the model would write them by itself.
    """

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        if not torch.is_grad_enabled():
            hidden_SBD, weight_VD, labels_SB, counted_SB = *outputs, labels[0], labels[1] > 0
            real = min(max(0, self.vocab_size - self.tensor.rank * len(weight_VD)), len(weight_VD))
            chunks = chunk_logits(hidden_SBD.flatten(0, 1), weight_VD, None)
            found = token_scores(chunks, labels_SB.flatten(), real, self.tensor)
            log_SB, highest_SB = (part.view_as(labels_SB) for part in found)
            all_B = (highest_SB | ~counted_SB).all(0)
            self.scores.append(torch.stack([(log_SB * counted_SB).sum(0), all_B.float()], 1))
        return super().__call__(outputs, labels)


class TaskLoss:
    """L3 = L2 + lm_coefficient x L1 (equation 5 of the paper). L2 is the cross-entropy, of a score the squared error.

    Outputs: the language model's (unread where lm_coefficient is 0), then scores [S, B, O]. Labels: those of
    the language model's loss; the position that is read [B]; the target distribution or score [E, K] and the
    weight [E] of each example. All weights come from the host and the whole global batch.
    """

    def __init__(self, spec: HeadSpec, language: LanguageLoss) -> None:
        self.spec, self.language = spec, language
        self.scores: list[Tensor] = []
        self.measures = language.measures

    def __call__(self, outputs: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> Tensor:
        *language, scores_SBO = outputs
        *tokens, at_B, targets_EK, weights_E = labels
        scores_EK = self.scores_at(scores_SBO, at_B)
        self.scores.append(scores_EK.detach())
        if self.spec.is_value:
            loss_E = (scores_EK - targets_EK).square().sum(-1)
        else:
            loss_E = -(targets_EK * scores_EK.log_softmax(-1)).sum(-1)
        loss = (loss_E * weights_E).sum()
        if self.spec.lm_coefficient:
            *tokens, weights_SB = tokens
            # in the weights, not after the sum: a loss whose gradient is 1 has nothing to scale on its way back
            pair_loss = loss
            loss = loss + self.language(tuple(language), (*tokens, self.spec.lm_coefficient * weights_SB))
            if self.measures and not torch.is_grad_enabled():
                hits = ((scores_EK.argmax(-1) == targets_EK.argmax(-1)) * weights_E).sum()
                self.measures[-1] |= {"pair_loss": pair_loss, "pair_accuracy": hits}
        return loss

    def scores_at(self, scores_SBO: Tensor, at_B: Tensor) -> Tensor:
        """fp32 [E, K]: the scores of each example's classes or choices."""
        scores_BO = scores_SBO[at_B, torch.arange(len(at_B), device=at_B.device)].float()
        if self.spec.choice:
            return scores_BO.view(-1, self.spec.sequences)
        return scores_BO.view(-1, self.spec.sequences, self.spec.outputs).sum(1)
