"""How text is chosen from what a model gives; checked before anything heavy is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, TypedDict, get_args

from gpt1_ds.common.errors import ArgumentError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import LARGEST_ALPHA
from gpt1_ds.tasks.text import most_written

TOKENS = 100
TEMPERATURE = 0.8
LengthPenalty = Literal["plain", "gnmt"]


class SamplingArguments(TypedDict, total=False):
    """Arguments of Sampling by name."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_tokens: int
    repetition_penalty: float
    beams: int
    length_penalty: LengthPenalty
    length_alpha: float
    early_end: bool


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0 takes the likeliest, without one it is TEMPERATURE; top_k 0 and top_p
    1 keep all. Without a number of tokens they are TOKENS at most, of an encoder-decoder's answer as many of them as
    its decoder holds.

    The end token does not come before `min_tokens` others. `repetition_penalty` divides the logits of tokens that are
    in the text already, or multiplies negative ones (Keskar et al. 2019, section 4.1).

    With `beams` above 1 the likeliest text is looked for, and nothing is drawn: that many beginnings of it are kept.
    Texts of other lengths compare by log-likelihood / length^alpha (`plain`) or / ((5 + length) / 6)^alpha (`gnmt`: Wu
    et al. 2016, section 7), alpha being `length_alpha`, the end token counted. `early_end` ends as soon as there are as
    many whole texts as beams, else when no beginning can become better than all of them.

    Raises ArgumentError for values out of range.
    """

    tokens: int | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    beams: int = 1
    length_penalty: LengthPenalty = "plain"
    length_alpha: float = 1.0
    early_end: bool = False

    def __post_init__(self) -> None:
        ArgumentError.raise_all(self._of_kinds())
        ArgumentError.raise_all([*self._of_draws(), *self._of_beams()])

    def _of_kinds(self) -> Iterator[str]:
        """Yields what Python lets pass and the command line does not."""
        for key in ("tokens", "top_k", "seed", "min_tokens", "beams"):
            value = getattr(self, key)
            if not isinstance(value, Integral) and (value is not None or key != "tokens"):
                yield f"{key}={value!r:.60} must be a whole number"
        for key in ("temperature", "top_p", "repetition_penalty", "length_alpha"):
            value = getattr(self, key)
            if not isinstance(value, Real) and (value is not None or key != "temperature"):
                yield f"{key}={value!r:.60} must be a number"

    def _of_draws(self) -> Iterator[str]:
        if self.tokens is not None and self.tokens < 1:
            yield f"tokens={self.tokens} must be at least 1"
        elif not 0 <= self.min_tokens <= (self.tokens or TOKENS):
            yield f"min_tokens={self.min_tokens} must be 0 or more, and at most tokens={self.tokens or TOKENS}"
        if not 0 <= self.drawn_at < math.inf:
            yield f"temperature={self.temperature} must be 0 or more; 0 takes the likeliest token"
        if self.top_k < 0:
            yield f"top_k={self.top_k} must not be negative; 0 keeps every token"
        if not 0 < self.top_p <= 1:
            yield f"top_p={self.top_p} must be above 0 and at most 1; 1 keeps every token"
        if not 0 <= self.seed < 2**63:
            yield f"seed={self.seed} must be 0 or more, and below 2^63"
        if not 0 < self.repetition_penalty < math.inf:
            yield f"repetition_penalty={self.repetition_penalty} must be above 0; 1 changes nothing"

    def _of_beams(self) -> Iterator[str]:
        if self.beams < 1:
            yield f"beams={self.beams} must be at least 1; 1 chooses token by token"
        if self.length_penalty not in get_args(LengthPenalty):
            yield f"length_penalty={self.length_penalty} must be one of {', '.join(get_args(LengthPenalty))}"
        if not -LARGEST_ALPHA <= self.length_alpha <= LARGEST_ALPHA:
            bounds = f"from {-LARGEST_ALPHA} to {LARGEST_ALPHA}"
            yield f"length_alpha={self.length_alpha} must be a number {bounds}; 0 compares log-likelihoods as they are"
        if self.beams == 1 and (self.length_penalty, self.length_alpha, self.early_end) != ("plain", 1.0, False):
            yield f"beams={self.beams} must be 2 or more for length_penalty, length_alpha and early_end"
        if self.beams > 1 and ((self.top_k, self.top_p) != (0, 1.0) or self.temperature not in (0, None)):
            yield f"beams={self.beams} must be 1 for temperature, top_k and top_p: beams draw nothing"

    @property
    def drawn_at(self) -> float:
        """Returns the temperature at which tokens are drawn."""
        return TEMPERATURE if self.temperature is None else self.temperature

    def normalised(self, total: float, length: int) -> float:
        """Returns the score by which a text of `length` tokens with the log-likelihood `total` compares."""
        base = float(length) if self.length_penalty == "plain" else (5 + length) / 6
        return total / math.pow(base, self.length_alpha)


def sampling_of(settings: TaskConfig, model: ModelConfig, longest: int) -> Sampling:
    """Returns how texts of at most `longest` tokens, the end symbol included, are written."""
    decoding = settings.decoding
    most = most_written(model, longest)
    return Sampling(
        tokens=most,
        temperature=0.0,
        min_tokens=min(decoding.min_tokens, most),
        beams=decoding.beams,
        length_penalty=decoding.length_penalty,
        length_alpha=decoding.length_alpha,
        early_end=decoding.early_end,
    )
