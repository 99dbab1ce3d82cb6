"""Examples whose answer is any text, as token sequences: a source, and the target that is to be written.

Both end with the end symbol, which is also what stands between them where one stack reads both. What is cut is their
end, without the end symbol of a target: a model that learned it there would stop too early.

Shapes: N examples, B rows, T tokens of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import Int64s
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.encoding import Encoded, encode, hash_arrays
from gpt1_ds.tasks.example import Example


@dataclass(frozen=True, kw_only=True)
class TargetRows(Encoded):
    """`Encoded`, of which tokens are the sources. The target of example n is
    target_tokens[target_offsets[n] : target_offsets[n + 1]], empty where none is known.
    """

    target_tokens: NDArray[np.int32]  # [total]
    target_offsets: Int64s  # [N + 1]
    cut_targets: int  # targets of which a part was cut off
    examples: tuple[Example, ...]  # [N]

    @cached_property
    def target_lengths(self) -> Int64s:
        """Returns int64 [N], the end symbol included."""
        return np.diff(self.target_offsets)

    @cached_property
    def data_hash(self) -> str:
        return hash_arrays(self.tokens, self.offsets, self.target_tokens, self.target_offsets)

    def source_of(self, number: int) -> list[int]:
        """Returns the tokens that example `number` is asked by."""
        return [int(one) for one in self.tokens[self.offsets[number] : self.offsets[number + 1]]]

    def targets_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Returns (int64 [B, T] padded at the end, lengths [B]) of these examples; of a negative number no token."""
        target_B = np.where(rows >= 0, self.target_lengths[rows], 0)
        target_BT = np.full((len(rows), max(1, int(target_B.max()))), self.pad, dtype=np.int64)
        for target_T, row, length in zip(target_BT, rows.tolist(), target_B.tolist(), strict=True):
            first = self.target_offsets[row]
            target_T[:length] = self.target_tokens[first : first + length]
        return target_BT, target_B


def encode_targets(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int, longest: int
) -> TargetRows:
    """Returns sources of at most `limit` tokens, targets of at most `longest`."""
    sources = encode(task, examples, tokenizer, limit)
    end, targets, cut = np.int32(tokenizer.eod_id), [], 0
    for example in examples:
        tokens = np.zeros(0, dtype=np.int32)
        if example.targets:
            tokens = np.append(tokenizer.encode(example.targets[0]), end)
        if len(tokens) > longest:
            tokens, cut = tokens[:longest], cut + 1
        targets.append(tokens.astype(np.int32))
    values = {one.name: getattr(sources, one.name) for one in fields(sources)}
    values["labels"] = np.array([0 if example.is_labelled else NO_LABEL for example in examples], dtype=np.int64)
    return TargetRows(
        **values,
        target_tokens=np.concatenate([np.zeros(0, dtype=np.int32), *targets]),
        target_offsets=np.cumsum([0, *map(len, targets)]).astype(np.int64),
        cut_targets=cut,
        examples=tuple(examples),
    )
