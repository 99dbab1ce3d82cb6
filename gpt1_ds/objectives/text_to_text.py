"""Fine-tuning in text: the source names a task and its texts, the target is the answer in words (Raffel et al. 2020).

Shapes: B rows, S positions of the longest source, K answers, T tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import TEXT, HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import Int64s
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import Texts, halves


@dataclass(frozen=True)
class TextToText:
    """Labels: the next tokens [S, B], or of two stacks the target [T, B], and their weights. Positions are a multiple
    of `multiple` and at most `limit`.
    """

    stacks: int
    answer_KT: Int64s  # padded at the end
    length_K: Int64s
    pad: int
    limit: int
    multiple: int
    head: HeadSpec = TEXT

    @classmethod
    def of(cls, stacks: int, answers: Sequence[NDArray[np.integer]], pad: int, limit: int, multiple: int) -> TextToText:
        length_K = np.array([len(answer) for answer in answers])
        answer_KT = np.full((len(answers), length_K.max()), pad, dtype=np.int64)
        for answer, row_T in zip(answers, answer_KT, strict=True):
            row_T[: len(answer)] = answer
        return cls(stacks, answer_KT, length_K, pad, limit, multiple)

    def positions(self, source: int) -> tuple[int, ...]:
        """Returns the positions of each stack, where the longest source has so many tokens. A batch's shape depends on
        nothing else.
        """
        target = self.answer_KT.shape[1]
        needed = (source, target) if self.stacks == 2 else (source + target - 1,)
        return tuple(min(-(-one // self.multiple) * self.multiple, self.limit) for one in needed)

    def batch(
        self, source_BS: NDArray[np.integer], source_B: Int64s, answer_B: Int64s, weight_B: NDArray[np.floating]
    ) -> HostBatch:
        """`weight_B` is that of each token of an answer, the end symbol included; 0 where a row only fills up."""
        texts = Texts(source_BS.astype(np.int64), source_B, self.answer_KT[answer_B], self.length_K[answer_B])
        return texts.host_batch(self.positions(source_BS.shape[1]), self.pad, weight_B)

    def probe(self, model: ModelConfig) -> HostBatch:
        return halves(model)
