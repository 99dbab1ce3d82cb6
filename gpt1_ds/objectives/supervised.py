"""Fine-tuning: a class, a score or a choice that is read off one token; tags of tokens and spans; and sentence vectors,
where each sequence of an example is a text of its own.

GPT-1 (section 3.2 of the paper) reads the extract token, with the language model's loss on the same text as an
auxiliary one; bidirectional models read the first token.

Shapes: E examples of C sequences of T tokens, B = E x C rows, K classes or choices, O outputs of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import Int64s
from gpt1_ds.objectives.base import HostBatch, probe_tokens

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Supervised:
    """Labels: next tokens [T, B] and their weights [T, B]; the position that is read [B]; the target distribution or
    score [E, K] and the weight [E] of each example.
    """

    head: HeadSpec

    def batch(
        self,
        tokens_ECT: NDArray[np.integer],
        lm_weights_ECS: Float32s,
        length_EC: Int64s,
        second_EC: Int64s,
        targets_EK: Float32s,
        weights_E: Float32s,
    ) -> HostBatch:
        """Returns the batch of these examples; `lm_weights_ECS` [E, C, T - 1] are of the tokens after the first. The
        second text of a sequence begins at `second_EC`.
        """
        tokens_TB, weights_TB = _columns(tokens_ECT, lm_weights_ECS)
        at_B, spans = self.reads(length_EC.reshape(-1), second_EC.reshape(-1))
        labels = (np.roll(tokens_TB, -1, 0), weights_TB, at_B, targets_EK, weights_E)
        return HostBatch((tokens_TB,), labels, spans)

    def reads(self, length_B: Int64s, second_B: Int64s) -> tuple[Int64s, tuple[Int64s, Int64s] | None]:
        """Returns the position that is read [B], and what the facts of each row say to a bidirectional model."""
        if self.head.kind == "linear":
            return length_B - 1, None
        return np.zeros_like(length_B), (length_B, second_B)

    def probe(self, model: ModelConfig) -> HostBatch:
        """Returns rows that are whole and all alike, and in which every class is as right as the others."""
        tokens_TB, C = probe_tokens(model), self.head.sequences
        classes = C if self.head.choice else self.head.outputs
        tokens_SB, labels_SB = (np.repeat(part, C, axis=1) for part in (tokens_TB[:-1], tokens_TB[1:]))
        weights_SB = np.full(labels_SB.shape, 1 / labels_SB.size, dtype=np.float32)
        targets_EK = np.full((1, classes), 1 / classes, dtype=np.float32)
        at_B, spans = self.reads(np.full(C, len(tokens_SB)), np.full(C, (len(tokens_SB) + 1) // 2))
        labels = (labels_SB, weights_SB, at_B, targets_EK, np.ones(1, dtype=np.float32))
        return HostBatch((tokens_SB,), labels, spans)


def _columns(tokens_ECT: NDArray[np.integer], lm_weights_ECS: Float32s) -> tuple[Int64s, Float32s]:
    """Returns (tokens [T, B], the weights of the tokens that follow them [T, B])."""
    E, C, T = tokens_ECT.shape
    tokens_TB = np.ascontiguousarray(tokens_ECT.reshape(E * C, T).T.astype(np.int64))
    weights_TB = np.zeros((T, E * C), dtype=np.float32)
    weights_TB[:-1] = lm_weights_ECS.reshape(E * C, T - 1).T
    return tokens_TB, weights_TB


@dataclass(frozen=True)
class Tokens:
    """Labels: next tokens [T, B] and their weights [T, B]; the tokens of each row [B]; the target distributions of the
    outputs of every token, times their weights [T, B, O]. An example is one sequence.
    """

    head: HeadSpec

    def batch(
        self,
        tokens_ECT: NDArray[np.integer],
        lm_weights_ECS: Float32s,
        length_EC: Int64s,
        second_EC: Int64s,
        targets_ETO: Float32s,
    ) -> HostBatch:
        """Returns the batch of these examples, as `Supervised.batch` does."""
        tokens_TB, weights_TB = _columns(tokens_ECT, lm_weights_ECS)
        length_B, second_B = length_EC.reshape(-1), second_EC.reshape(-1)
        targets_TBO = np.ascontiguousarray(targets_ETO.transpose(1, 0, 2))
        labels = (np.roll(tokens_TB, -1, 0), weights_TB, length_B, targets_TBO)
        return HostBatch((tokens_TB,), labels, (length_B, second_B))

    def probe(self, model: ModelConfig) -> HostBatch:
        """Returns a whole row, in which every place and every output is as right as the others."""
        tokens_T = probe_tokens(model)[:, 0]
        S, O = len(tokens_T) - 1, self.head.outputs  # noqa: E741
        shares = np.full((1, 1, S - 1), 1 / S, dtype=np.float32)
        targets_1SO = np.full((1, S, O), 1 / (S * O), dtype=np.float32)
        length, second = np.array([[S]]), np.array([[(S + 1) // 2]])
        return self.batch(tokens_T[None, None, :-1], shares, length, second, targets_1SO)


@dataclass(frozen=True)
class Sentences(Supervised):
    """Makes the batches of any task. Causal models, too, get the length of each row, because its states are pooled."""

    def probe(self, model: ModelConfig) -> HostBatch:
        """Returns a group of examples, each text the probe's tokens from another one on, and the shorter the later it
        is.
        """
        head, tokens_T = self.head, probe_tokens(model)[:-1, 0]
        E, C, K = head.group, head.sequences, max(2, head.outputs)
        if head.loss == "cosine":
            K = 1
        rows = np.arange(E * C)
        tokens_TB = np.stack([np.roll(tokens_T, row) for row in rows], axis=1)
        length_B = np.maximum(1, len(tokens_T) - rows % C)
        weights_TB = np.zeros(tokens_TB.shape, dtype=np.float32)
        targets_EK = np.full((E, K), 1 / K / (1 + (K == 1)), dtype=np.float32)
        labels = (tokens_TB, weights_TB, np.zeros_like(length_B), targets_EK, np.full(E, 1 / E, dtype=np.float32))
        return HostBatch((tokens_TB,), labels, (length_B, length_B))


def of_head(head: HeadSpec) -> Supervised | Tokens:
    """Returns the objective of a task's head."""
    if head.reads_tokens:
        return Tokens(head)
    return Supervised(head) if head.loss is None else Sentences(head)
