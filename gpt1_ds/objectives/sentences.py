"""Fine-tuning of sentence vectors: each sequence of an example is a text of its own.

Shapes: E examples of C texts of T tokens, B = E x C rows, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.objectives.base import HostBatch, probe_tokens
from gpt1_ds.objectives.supervised import Supervised


@dataclass(frozen=True)
class Sentences(Supervised):
    """Batches are those of any task; a row's length is told to causal models, too, because its states are pooled."""

    def probe(self, model: ModelConfig) -> HostBatch:
        """A group of examples, each text the probe's tokens from another one on, and the shorter the later it is."""
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


def of_head(head: HeadSpec) -> Supervised:
    """The objective of a task's head."""
    return Supervised(head) if head.loss is None else Sentences(head)
