"""What pre-training learns to predict, and how long its rows are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpt1_ds.config.model import ModelConfig

FEW = 5  # tokens of a row of which no more than one is predicted: the others may be special tokens
WHOLE = 8  # of an encoder-decoder's targets: every tensor-parallel size up to it cuts their positions evenly


@dataclass(frozen=True)
class RowLengths:
    """The lengths of every row: tokens of its text, positions of each stack, tokens that are predicted (of a random
    number, the most).
    """

    text: int
    stacks: tuple[int, ...]
    predicted: int

    @property
    def fed(self) -> int:
        """Returns the number of positions that the model computes."""
        return sum(self.stacks)


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    kind: Literal["causal", "masked", "prefix", "spans"] = "causal"  # predicts next tokens, masked ones, a rest, spans
    probability: float = 0.15  # masked: fraction of a row's tokens that is predicted
    replace: float = 0.8  # of these, fraction that is replaced by <mask>
    random: float = 0.1  # of these, fraction that is replaced by a random token; the others stay as they are
    whole_words: bool = False  # masked: all pieces of a word are predicted, or none
    copies: int = 0  # masked: versions of each row's masks, in turn (BERT: 10); 0: drawn anew in every pass (RoBERTa)
    next_sentence: bool = False  # also predict whether the second text of a pair follows the first
    density: float = 0.15  # spans: fraction of a text's tokens that sentinels stand for
    mean_length: float | None = 3.0  # spans: tokens of one; null: tokens are drawn one by one, neighbours are joined
    sentinels: int = 100  # spans: ids <extra_id_k> of the tokenizer, one for each span of a text
    predict: Literal["targets", "all"] = "targets"  # spans, one stack: the loss counts the target, or its source too

    def predicted_tokens(self, length: int) -> int:
        """masked: of a row of `length` tokens."""
        return max(1, round(self.probability * length)) if length > FEW else min(1, length)

    def noise(self, text: int) -> tuple[int, int]:
        """spans: (tokens of a text that sentinels stand for, spans that they are; the most where they vary)."""
        noise = min(max(round(text * self.density), 1), text - 1)
        if self.mean_length is None:
            return noise, min(noise, text - noise + 1)
        return noise, min(max(round(noise / self.mean_length), 1), text - noise)

    def span_lengths(self, text: int) -> tuple[int, int]:
        """spans: (source, target) of a text, the end of each included; the longest where they vary."""
        noise, spans = self.noise(text)
        return text - noise + spans + 1, noise + spans + 1

    def lengths(self, model: ModelConfig) -> RowLengths:
        """Raises ValueError for a context in which no spans fit (validated before)."""
        context, two = model.context, model.stacks == 2
        if self.kind == "masked":
            return RowLengths(context, (context,), self.predicted_tokens(context))
        if self.kind != "spans":
            return RowLengths(context, (context,) * model.stacks, context)
        text = 1 + bisect_right(range(2, 2 * context + 2), context, key=lambda text: self._positions(text, two))
        if text < 2:
            raise ValueError(f"model.context={context}")
        source, target = self.span_lengths(text)
        if two:
            return RowLengths(text, (context, -(-target // WHOLE) * WHOLE), target)
        return RowLengths(text, (context,), target if self.predict == "targets" else source + target - 1)

    def _positions(self, text: int, two: bool) -> int:
        """spans: of the only stack, or the first of two."""
        source, target = self.span_lengths(text)
        return source if two else source + target - 1

    def problems(self) -> Iterator[str]:
        for key, known in (("probability", "BERT's is 0.15"), ("density", "T5's is 0.15")):
            if not 0 < getattr(self, key) <= 1:
                yield f"objective.{key}={getattr(self, key)} must be in (0, 1]; {known}"
        if self.replace < 0 or self.random < 0 or self.replace + self.random > 1:
            yield (
                f"objective.replace={self.replace} and objective.random={self.random} must not be negative, and at "
                "most 1 together; BERT's are 0.8 and 0.1"
            )
        if self.copies < 0:
            yield f"objective.copies={self.copies} must be at least 0"
        if self.kind != "masked" and self.next_sentence:
            yield "objective.next_sentence=true needs objective.kind=masked; or leave it out"
        if self.kind != "masked" and self.copies:
            yield f"objective.copies={self.copies} needs objective.kind=masked; leave it out"
        if self.mean_length is not None and self.mean_length < 1:
            yield f"objective.mean_length={self.mean_length} must be at least 1, or null; T5's is 3"
        if self.sentinels < 1:
            yield f"objective.sentinels={self.sentinels} must be at least 1; T5 has 100"
