"""Losses on the last stage: (what the heads made of the states, labels) -> fp32 scalar.

Shapes: S positions, B rows, D width, V vocabulary rows on this rank, E examples of C rows each, K classes or choices, G
examples of a group.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import Config
from gpt1_ds.model.kernels.cross_entropy import SHARP, Target, chunk_logits, head_loss
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.states import States
from gpt1_ds.model.token_scores import head_hits, token_scores

SCALE = 20.0  # of the cosines that a softmax is over, as in the authors' library of sentence vectors


class Loss(ABC):
    """A micro-batch's share of the batch's loss. `scores` are the task's, [E, K] of every call since `forget`, newest
    last; in a pipeline the last stage alone has them.

    `measures` are there of every evaluation of masked text, fp32 scalars by name, weighted as the loss is: `loss`, of
    the masked tokens alone, and `masked_accuracy`; with pairs also `pair_loss` and `pair_accuracy`.
    """

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.measures: list[dict[str, Tensor]] = []

    @abstractmethod
    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor: ...

    def forget(self) -> None:
        """Drops what earlier steps and evaluations left."""
        self.scores.clear()
        self.measures.clear()

    def parts(self, scores: Tensor, labels: tuple[Tensor, ...]) -> Tensor | None:
        """Returns fp32 [2], of the scores of a call and its labels: the task's share of the loss, and the share of the
        batch's examples that are right (nan where none can be); None without a head whose task has both.
        """
        return None


Observer = Callable[[tuple[Tensor, ...]], Tensor]  # labels -> fp32 [T], which receives the nats of their tokens


def language_loss(loss: Any) -> LanguageLoss | None:
    """Returns the part of a loss that predicts tokens; None where a loss has none."""
    return loss if isinstance(loss, LanguageLoss) else getattr(loss, "language", None)


def make_loss(config: Config, head: HeadSpec | None, vocab_size: int, tensor: TensorParallel) -> Loss:
    of_task = 0.0 if config.task is None else config.task.label_smoothing
    if head is not None and head.loss is not None:
        return SentenceLoss(head, of_task)
    kind = TextLoss if head is not None and head.kind == "text" else LanguageLoss
    language = kind(vocab_size, tensor, config.train.label_smoothing)
    if head is None or head.kind == "text":
        return language
    return TokenLoss(head, language, of_task) if head.reads_tokens else TaskLoss(head, language, of_task)


class LanguageLoss(Loss):
    """Tokens are predicted, by the last states [S, B, D], the weights [V, D] that make logits of them, and of a masked
    head the logits' bias [V]. Labels: tokens [S, B] and their weights [S, B]; or, where few positions
    count, which ones of a row [M, B], and their tokens and weights [M, B].

    The weights are worked out on the host from the whole global batch, so that the mean over micro-batches and
    data-parallel ranks that DeepSpeed takes is the mean over the batch's tokens, however the batch is cut.

    While a model is trained, `smoothing` of a target is spread over the vocabulary; an evaluation has none.
    """

    def __init__(self, vocab_size: int, tensor: TensorParallel, smoothing: float = 0.0) -> None:
        super().__init__()
        self.vocab_size, self.tensor = vocab_size, tensor
        self.target = Target.smoothed(smoothing, vocab_size)
        self.observer: Observer | None = None  # of the tokens of a step that is watched

    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        hidden_SBD, weight_VD, bias_V = states.last, states.weight_VD, states.bias_V
        assert weight_VD is not None, "a language model has a head"
        *places, labels_SB, weights_SB = labels
        for at_MB in places:
            hidden_SBD = hidden_SBD[at_MB, torch.arange(at_MB.shape[1], device=at_MB.device)]  # [M, B, D]
        hidden_TD, real = hidden_SBD.reshape(-1, hidden_SBD.shape[-1]), self._real(weight_VD)
        labels_T, weights_T = labels_SB.flatten(), weights_SB.flatten()
        target = self.target if torch.is_grad_enabled() else SHARP
        each_T = None if self.observer is None else self.observer(labels)
        loss = head_loss(hidden_TD, weight_VD, labels_T, weights_T, real, self.tensor, bias_V, target, each_T)
        if places and not torch.is_grad_enabled():  # an evaluation, which may multiply with the vocabulary once more
            chunks = chunk_logits(hidden_TD, weight_VD, bias_V)
            hits = head_hits(chunks, labels_T, weights_T, real, self.tensor)
            self.measures.append({"loss": loss, "masked_accuracy": hits})
        return loss

    def _real(self, weight_VD: Tensor) -> int:
        """Returns how many vocabulary rows of this rank are no padding."""
        return min(max(0, self.vocab_size - self.tensor.rank * len(weight_VD)), len(weight_VD))


class TextLoss(LanguageLoss):
    """That of a language model; an evaluation also scores each row, [B, 2]: the log-probability of its counted tokens
    (nats), and 1 where each has the highest logit, so that the model would write them by itself.
    """

    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        if not torch.is_grad_enabled():
            hidden_SBD, weight_VD, labels_SB, counted_SB = states.last, states.weight_VD, labels[0], labels[1] > 0
            assert weight_VD is not None, "a language model has a head"
            chunks = chunk_logits(hidden_SBD.flatten(0, 1), weight_VD, None)
            found = token_scores(chunks, labels_SB.flatten(), self._real(weight_VD), self.tensor)
            log_SB, highest_SB = (part.view_as(labels_SB) for part in found)
            all_B = (highest_SB | ~counted_SB).all(0)
            self.scores.append(torch.stack([(log_SB * counted_SB).sum(0), all_B.float()], 1))
        return super().__call__(states, labels)


class TaskLoss(Loss):
    """L3 = L2 + lm_coefficient x L1 (equation 5 of the paper). L2 is the cross-entropy, of a score the squared error.

    The head's scores are [S, B, O]. Labels: those of the language model's loss; the position that is read [B]; the
    target distribution or score [E, K] and the weight [E] of each example. All weights come from the host and the whole
    global batch.
    """

    def __init__(self, spec: HeadSpec, language: LanguageLoss, smoothing: float = 0.0) -> None:
        super().__init__()
        self.spec, self.language, self.smoothing = spec, language, smoothing
        self.measures = language.measures

    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        *tokens, at_B, targets_EK, weights_E = labels
        assert states.scores is not None, "a task has a head"
        scores_EK = self.scores_at(states.scores, at_B)
        self.scores.append(scores_EK.detach())
        loss = self._of_task(scores_EK, targets_EK, weights_E)
        if self.spec.lm_coefficient:
            *tokens, weights_SB = tokens
            # in the weights, not after the sum: a loss whose gradient is 1 has nothing to scale on its way back
            pair_loss = loss
            loss = loss + self.language(states, (*tokens, self.spec.lm_coefficient * weights_SB))
            if self.measures and not torch.is_grad_enabled():
                hits = ((scores_EK.argmax(-1) == targets_EK.argmax(-1)) * weights_E).sum()
                self.measures[-1] |= {"pair_loss": pair_loss, "pair_accuracy": hits}
        return loss

    def _of_task(self, scores_EK: Tensor, targets_EK: Tensor, weights_E: Tensor) -> Tensor:
        if self.spec.is_value:
            loss_E = (scores_EK - targets_EK).square().sum(-1)
        else:
            loss_E = _cross_entropy(scores_EK, targets_EK, self.smoothing)
        return (loss_E * weights_E).sum()

    def parts(self, scores: Tensor, labels: tuple[Tensor, ...]) -> Tensor | None:
        *_, targets_EK, weights_E = labels
        right_E = scores.argmax(-1) == targets_EK.argmax(-1)
        hits = torch.full_like(weights_E[0], math.nan) if self.spec.is_value else (right_E * weights_E).sum()
        return torch.stack([self._of_task(scores, targets_EK, weights_E), hits])

    def scores_at(self, scores_SBO: Tensor, at_B: Tensor) -> Tensor:
        """Returns fp32 [E, K]: the scores of each example's classes or choices."""
        scores_BO = scores_SBO[at_B, torch.arange(len(at_B), device=at_B.device)].float()
        if self.spec.choice:
            return scores_BO.view(-1, self.spec.sequences)
        return scores_BO.view(-1, self.spec.sequences, self.spec.outputs).sum(1)


class TokenLoss(Loss):
    """The cross-entropy of the scores [S, B, O] of tokens, with lm_coefficient x the language model's loss. Of `tags`
    the softmax is over a token's outputs; of `span` over the tokens of a row, once for where the answer begins and once
    for where it ends (Devlin et al. 2019, section 4.2). What fills up a row is left out: padding changes nothing.

    Labels: those of the language model's loss; the tokens of each row [B]; the target distributions [S, B, O], times
    their weights, which come from the host and the whole global batch. Scores are [B, S, O].
    While a model is trained, `smoothing` of a tag's target is spread over all tags.
    """

    def __init__(self, spec: HeadSpec, language: LanguageLoss, smoothing: float = 0.0) -> None:
        super().__init__()
        self.spec, self.language, self.smoothing = spec, language, smoothing
        self.measures = language.measures

    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        *tokens, length_B, targets_SBO = labels
        assert states.scores is not None, "a task has a head"
        scores_SBO = states.scores.float()
        self.scores.append(scores_SBO.detach().transpose(0, 1))
        loss = self._of_task(scores_SBO, length_B, targets_SBO)
        if self.spec.lm_coefficient:
            *tokens, weights_SB = tokens
            loss = loss + self.language(states, (*tokens, self.spec.lm_coefficient * weights_SB))
        return loss

    def parts(self, scores: Tensor, labels: tuple[Tensor, ...]) -> Tensor | None:
        *_, length_B, targets_SBO = labels
        scores_SBO = scores.transpose(0, 1)
        weights_SB = targets_SBO.sum(-1)
        hits = ((scores_SBO.argmax(-1) == targets_SBO.argmax(-1)) * weights_SB).sum()
        if self.spec.kind == "span":
            hits = torch.full_like(hits, math.nan)
        return torch.stack([self._of_task(scores_SBO, length_B, targets_SBO), hits])

    def _of_task(self, scores_SBO: Tensor, length_B: Tensor, targets_SBO: Tensor) -> Tensor:
        if self.smoothing and torch.is_grad_enabled():
            share_SB1 = targets_SBO.sum(-1, keepdim=True) / self.spec.outputs
            targets_SBO = (1 - self.smoothing) * targets_SBO + self.smoothing * share_SB1
        is_padding_SB1 = (torch.arange(len(scores_SBO), device=length_B.device)[:, None] >= length_B)[..., None]
        axis = 0 if self.spec.kind == "span" else -1
        log_SBO = scores_SBO.masked_fill(is_padding_SB1, -math.inf if axis == 0 else 0.0).log_softmax(axis)
        return -(targets_SBO * log_SBO.masked_fill(is_padding_SB1, 0.0)).sum()


class SentenceLoss(Loss):
    """What trains sentence vectors [B, D] (Reimers and Gurevych 2019, section 3), and the cosine that judges them. Of
    nli there are also scores [E, K]. Labels: those of the language model's loss and a position (unread); targets [E,
    K]; the weight [E] of each example.

    A target of one column is the pair's score from 0 to 1, whatever the loss is: its squared difference from the cosine
    counts. Scores are the cosines [E, 1] of the first two texts.

        nli       cross-entropy of the logits
        triplet   max(|a - p| - |a - n| + margin, 0), Euclid's distances
        cosine    (cos(u, v) - score)^2
        ranking   cross-entropy of SCALE x cos(u, v) over the second texts v of the example's group of G
    """

    def __init__(self, spec: HeadSpec, smoothing: float = 0.0) -> None:
        super().__init__()
        self.spec, self.smoothing = spec, smoothing

    def __call__(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        vectors_BD, logits_EK = states.vectors_BD, states.scores
        assert vectors_BD is not None, "sentences have a head that pools"
        *_, targets_EK, weights_E = labels
        texts = vectors_BD.view(len(weights_E), -1, vectors_BD.shape[-1]).unbind(1)  # C of [E, D]
        cosine_E = F.cosine_similarity(texts[0], texts[1], dim=-1)
        self.scores.append(cosine_E.detach().unsqueeze(1))
        if targets_EK.shape[1] == 1:
            loss_E = (cosine_E - targets_EK[:, 0]).square()
        elif logits_EK is not None:  # nli
            loss_E = _cross_entropy(logits_EK.float(), targets_EK, self.smoothing)
        elif self.spec.loss == "triplet":
            near_E, far_E = (F.pairwise_distance(texts[0], other) for other in texts[1:])
            loss_E = (near_E - far_E + self.spec.margin).relu()
        else:
            loss_E = _ranking(texts[0], texts[1], self.spec.group)
        loss: Tensor = (loss_E * weights_E).sum()
        return loss


def _cross_entropy(scores_EK: Tensor, targets_EK: Tensor, smoothing: float) -> Tensor:
    """Returns [E]: nats; while a model is trained, `smoothing` of a target is spread over its K classes or choices."""
    if smoothing and torch.is_grad_enabled():
        targets_EK = (1 - smoothing) * targets_EK + smoothing / targets_EK.shape[1]
    loss_E: Tensor = -(targets_EK * scores_EK.log_softmax(-1)).sum(-1)
    return loss_E


def _ranking(u_ED: Tensor, v_ED: Tensor, group: int) -> Tensor:
    """Returns [E]: a group never reaches beyond a micro-batch, so that no layout changes it."""
    u_NGD, v_NGD = (F.normalize(part, dim=-1).unflatten(0, (-1, group)) for part in (u_ED, v_ED))
    cosine_NGG = u_NGD @ v_NGD.transpose(1, 2)
    right_NG = (SCALE * cosine_NGG).log_softmax(-1).diagonal(dim1=1, dim2=2)
    loss_E: Tensor = -right_NG.flatten()
    return loss_E
