"""Examples whose tokens the head scores one by one, as token sequences: several rows where a text is longer than one.

The two kinds are tags (tag_rows.py) and spans (span_rows.py).

Shapes: N examples, R rows of them, B rows of a batch, T tokens of a row, O outputs of a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import Int64s
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.encoding import ROLES, Encoded, hash_arrays, pad_id_of
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tasks.token_metrics import Objects

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Answered:
    """The predicted answers of N examples. Of spans, `null_gap` [N] is how much larger the score of no answer is than
    that of the best span (logits), and `places` [N, 2] are the characters [first, stop) of the context that this is.
    """

    found: Objects
    null_gap: NDArray[np.float64] | None = None
    places: Int64s | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRows(Encoded, ABC):
    """`Encoded`, whose rows are single sequences: row r is of example `owners[r]`. Ids and groups are those of rows."""

    owners: Int64s  # [R]
    examples: tuple[Example, ...]  # [N]

    @property
    def example_ids(self) -> tuple[str, ...]:
        return tuple(example.id for example in self.examples)

    @cached_property
    def data_hash(self) -> str:
        parts = (getattr(self, one.name) for one in fields(self))
        return hash_arrays(*(part for part in parts if isinstance(part, np.ndarray)))

    @abstractmethod
    def token_targets(self, rows: Int64s, length: int) -> tuple[Float32s, int]:
        """Returns (float32 [B, length, O]: the target distributions times their weights, which sum to 1 over all of
        these rows; the number of targets). Row -1 only fills up the batch.
        """

    @abstractmethod
    def answers(self, scores: Sequence[Float32s]) -> Answered:
        """Returns the answer to every example, by the head's scores [T, O] of each row."""

    def _tokens_of(self, row: int) -> slice:
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))


def symbol_ids(task: Task, tokenizer: Tokenizer) -> tuple[Int32s, Int32s, Int32s]:
    """Returns the ids of the symbols before, between and after texts."""
    first, between, last = ROLES[task.symbols]
    need = f"task.name={task.name}"
    before, middle, after = (
        np.array([tokenizer.special_ids.require(role, need) for role in roles], dtype=np.int32)
        for roles in ((first,), between, (last,))
    )
    return before, middle, after


def common_fields(
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    limit: int,
    rows: Sequence[Int32s],
    owners: Sequence[int],
    seconds: Sequence[int],
) -> dict[str, Any]:
    """Returns the fields that rows of tags and of spans have in common."""
    labels = [0 if examples[owner].is_labelled else NO_LABEL for owner in owners]
    return {
        "tokens": np.concatenate([np.zeros(0, dtype=np.int32), *rows]),
        "offsets": np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        "seconds": np.array(seconds, dtype=np.int64).reshape(-1, 1),
        "sequences": 1,
        "labels": np.array(labels, dtype=np.int64),
        "scores": np.full(len(rows), np.nan),
        "targets": None,
        "ids": tuple(examples[owner].id for owner in owners),
        "groups": tuple(examples[owner].group for owner in owners),
        "truncated": 0,  # nothing is: a longer text has several rows
        "limit": limit,
        "pad": pad_id_of(task, tokenizer),
        "owners": np.array(owners, dtype=np.int64),
        "examples": tuple(examples),
    }
