"""What every objective gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.facts import COLUMNS, KEY, SECOND, UNTIL
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config.model import PROBE_POSITIONS, ModelConfig
from gpt1_ds.data.windows import Int64s, mix

Arrays = tuple[NDArray[Any], ...]
UInt64s = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class HostBatch:
    """One micro-batch of B rows: what the first layer reads (but for the dropout keys), and what the loss reads. The
    engine knows neither. `spans` are (until which position every token sees [B], where the second segment begins [B]):
    of a bidirectional row its length, of another its prefix, of an encoder-decoder's its source. `bounds` [B, F - 3]
    say where documents lie that do not see one another (architecture/facts.py).
    """

    inputs: Arrays
    labels: Arrays
    spans: tuple[Int64s, Int64s] | None = None
    bounds: Int64s | None = None


class Objective(Protocol):
    @property
    def head(self) -> HeadSpec | None:
        """What it asks of the model's head and of the loss; None: the language model's."""
        ...

    def probe(self, model: ModelConfig) -> HostBatch:
        """Returns one fixed example, the same for every dataset: its loss shows whether weights are what they were."""
        ...


class TextObjective(Objective, Protocol):
    """An objective of pre-training. `rows` are of the kind that the configuration's data come in."""

    @property
    def predicts_all(self) -> bool:
        """Whether every token of a row is predicted."""
        ...

    @property
    def predicts_places(self) -> bool:
        """Whether labels name the few places that are predicted; then an evaluation has more measures than its loss."""
        ...

    def batch(self, rows: Any) -> HostBatch: ...

    def counts(self, rows: Any, real: int, global_batch: int) -> tuple[int, int]:
        """Returns (tokens that the loss of the global batch is a mean over, how many of these are in its `real`
        rows).
        """
        ...


def draws(number_B: Int64s, positions: int, key: int) -> UInt64s:
    """Returns 64 pseudo-random bits for each position of these sequences."""
    with np.errstate(over="ignore"):
        row_B = mix(number_B.astype(np.uint64) * _GOLDEN + np.uint64(key))
        return mix(row_B[:, None] + np.arange(1, positions + 1, dtype=np.uint64) * _GOLDEN)


def row_facts(keys_B: Int64s, spans: tuple[Int64s, Int64s] | None = None, bounds: Int64s | None = None) -> Int64s:
    """Returns int64 [B, F]: what travels with the hidden states (architecture/facts.py)."""
    facts_B3 = np.zeros((len(keys_B), COLUMNS), dtype=np.int64)
    facts_B3[:, KEY] = keys_B
    if spans is not None:
        facts_B3[:, UNTIL], facts_B3[:, SECOND] = spans
    return facts_B3 if bounds is None else np.concatenate([facts_B3, bounds], 1)


def probe_tokens(model: ModelConfig) -> NDArray[np.int64]:
    """Returns int64 [T, 1]: pseudo-random token ids."""
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    numbers = np.arange(1, min(model.context, PROBE_POSITIONS) + 2, dtype=np.uint64)
    return (mix(numbers) % np.uint64(model.vocab_size)).astype(np.int64)[:, None]
