"""GPT-1's fine-tuning (section 3.2 of the paper): a class, a score or a choice read off the extract token, with the
language model's loss on the same text as an auxiliary one.

Shapes: E examples of C sequences of T tokens, B = E x C rows, K classes or choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.objectives.base import HostBatch, probe_tokens

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Supervised:
    """Labels: next tokens [T, B] and their weights [T, B]; the extract token's position [B]; the target distribution
    [E, K] and the weight [E] of each example.
    """

    head: HeadSpec

    def batch(
        self,
        tokens_ECT: NDArray[np.integer],
        lm_weights_ECS: Float32s,
        extract_EC: NDArray[np.int64],
        targets_EK: Float32s,
        weights_E: Float32s,
    ) -> HostBatch:
        """Of these examples; `lm_weights_ECS` [E, C, T - 1] are of the tokens after the first."""
        E, C, T = tokens_ECT.shape
        tokens_TB = np.ascontiguousarray(tokens_ECT.reshape(E * C, T).T.astype(np.int64))
        weights_TB = np.zeros((T, E * C), dtype=np.float32)
        weights_TB[:-1] = lm_weights_ECS.reshape(E * C, T - 1).T
        labels = (np.roll(tokens_TB, -1, 0), weights_TB, extract_EC.reshape(-1), targets_EK, weights_E)
        return HostBatch((tokens_TB,), labels)

    def probe(self, model: ModelConfig) -> HostBatch:
        """All rows alike, the last position extracted and every class as right as the others."""
        tokens_TB, C = probe_tokens(model), self.head.sequences
        classes = C if self.head.choice else self.head.outputs
        tokens_SB, labels_SB = (np.repeat(part, C, axis=1) for part in (tokens_TB[:-1], tokens_TB[1:]))
        weights_SB = np.full(labels_SB.shape, 1 / labels_SB.size, dtype=np.float32)
        targets_EK = np.full((1, classes), 1 / classes, dtype=np.float32)
        extract_B = np.full(C, len(tokens_SB) - 1)
        return HostBatch((tokens_SB,), (labels_SB, weights_SB, extract_B, targets_EK, np.ones(1, dtype=np.float32)))
