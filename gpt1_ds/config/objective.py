"""What pre-training learns to predict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

FEW = 5  # tokens of a row of which no more than one is predicted: the others may be special tokens


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    kind: Literal["causal", "masked"] = "causal"  # the next token; or the tokens of some positions, which are masked
    probability: float = 0.15  # masked: fraction of a row's tokens that is predicted
    replace: float = 0.8  # of these, fraction that is replaced by <mask>
    random: float = 0.1  # of these, fraction that is replaced by a random token; the others stay as they are
    whole_words: bool = False  # masked: all pieces of a word are predicted, or none
    copies: int = 0  # masked: versions of each row's masks, in turn (BERT: 10); 0: drawn anew in every pass (RoBERTa)
    next_sentence: bool = False  # also predict whether the second text of a pair follows the first

    def predicted_tokens(self, length: int) -> int:
        """Of a row of `length` tokens."""
        if self.kind == "causal":
            return length
        return max(1, round(self.probability * length)) if length > FEW else min(1, length)

    def problems(self) -> Iterator[str]:
        if not 0 < self.probability <= 1:
            yield f"objective.probability={self.probability} must be in (0, 1]; BERT's is 0.15"
        if self.replace < 0 or self.random < 0 or self.replace + self.random > 1:
            yield (
                f"objective.replace={self.replace} and objective.random={self.random} must not be negative, and at "
                "most 1 together; BERT's are 0.8 and 0.1"
            )
        if self.copies < 0:
            yield f"objective.copies={self.copies} must be at least 0"
        if self.kind == "causal" and self.next_sentence:
            yield "objective.next_sentence=true needs objective.kind=masked; or leave it out"
