"""What every objective gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.facts import COLUMNS, KEY, SECOND, UNTIL
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.windows import Int64s, mix

Arrays = tuple[NDArray[Any], ...]
PROBE_POSITIONS = 64  # at most; enough to pass through every parameter of every block


@dataclass(frozen=True)
class HostBatch:
    """One micro-batch of B rows: what the first layer reads (but for the dropout keys), and what the loss reads. The
    engine knows neither. `spans` are (length [B], where the second segment begins [B]) of bidirectional rows.
    """

    inputs: Arrays
    labels: Arrays
    spans: tuple[Int64s, Int64s] | None = None


class Objective(Protocol):
    @property
    def head(self) -> HeadSpec | None:
        """What it asks of the model's head and of the loss; None: the language model's."""
        ...

    def probe(self, model: ModelConfig) -> HostBatch:
        """One fixed example, the same for every dataset: its loss tells whether weights are what they were."""
        ...


class TextObjective(Objective, Protocol):
    """An objective of pre-training. `rows` are of the kind that the configuration's data come in."""

    @property
    def predicts_all(self) -> bool:
        """Whether every token of a row is predicted."""
        ...

    def batch(self, rows: Any) -> HostBatch: ...

    def counts(self, rows: Any, real: int, global_batch: int) -> tuple[int, int]:
        """(tokens that the loss of the global batch is a mean over, how many of these are in its `real` rows)."""
        ...


def row_facts(keys_B: Int64s, spans: tuple[Int64s, Int64s] | None = None) -> Int64s:
    """int64 [B, 3]: what travels with the hidden states (architecture/facts.py)."""
    facts_B3 = np.zeros((len(keys_B), COLUMNS), dtype=np.int64)
    facts_B3[:, KEY] = keys_B
    if spans is not None:
        facts_B3[:, UNTIL], facts_B3[:, SECOND] = spans
    return facts_B3


def probe_tokens(model: ModelConfig) -> NDArray[np.int64]:
    """int64 [T, 1]: pseudo-random token ids."""
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    numbers = np.arange(1, min(model.context, PROBE_POSITIONS) + 2, dtype=np.uint64)
    return (mix(numbers) % np.uint64(model.vocab_size)).astype(np.int64)[:, None]
