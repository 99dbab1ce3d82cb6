"""How text is drawn from a model; checked before anything heavy is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpt1_ds.common.errors import ArgumentError

TOKENS = 100


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. temperature 0 takes the likeliest; top_k 0 and top_p 1 keep all. Without a number of
    tokens they are TOKENS at most, of an encoder-decoder's answer as many of them as its decoder holds.

    Raises ArgumentError for values out of range.
    """

    tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.tokens is not None and self.tokens < 1:
            problems.append(f"tokens={self.tokens} must be at least 1")
        if not 0 <= self.temperature < math.inf:
            problems.append(f"temperature={self.temperature} must be 0 or more; 0 takes the likeliest token")
        if self.top_k < 0:
            problems.append(f"top_k={self.top_k} must not be negative; 0 keeps every token")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p={self.top_p} must be above 0 and at most 1; 1 keeps every token")
        if not 0 <= self.seed < 2**63:
            problems.append(f"seed={self.seed} must be 0 or more, and below 2^63")
        ArgumentError.raise_all(problems)
