"""Batches of examples: which ones, in which order, and as arrays.

A training batch is a pure function of (seed, epoch, k, data hash). An epoch is a keyed permutation of the examples; its
last partial batch is dropped, as in the authors' code. Runs of POOL batches are sorted by length before they are cut
into batches, so that a batch holds sequences of about one length, and the batches are shuffled again. Nothing depends
on ranks or micro-batches: each takes rows of the whole batch, whose length is that of its longest sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.windows import Int64s, key_of, permute
from gpt1_ds.tasks.base import NO_LABEL
from gpt1_ds.tasks.encoding import Encoded
from gpt1_ds.tasks.mixture import Draw
from gpt1_ds.tasks.target_rows import TargetRows
from gpt1_ds.tasks.token_rows import TokenRows

POOL = 50  # batches that are sorted together: more pad less, and shuffle less
MULTIPLE = 4  # a batch's length is a multiple of this many tokens: fewer shapes for little padding
PADDING_ROW = -1  # number of the example in a row that only fills up the batch


@dataclass(frozen=True)
class TaskBatch:
    """B examples of C sequences of T positions. Padding comes after each sequence."""

    tokens: NDArray[np.int32]  # [B, C, T]
    lengths: Int64s  # [B, C]; 1 in a padding row
    seconds: Int64s  # [B, C], where the second text begins; the length where there is none
    lm_weights: NDArray[np.float32]  # [B, C, T - 1], of the loss of tokens[..., 1:]; the whole batch sums to 1
    labels: Int64s  # [B], class or right choice; -1: none
    targets: NDArray[np.float32] | None  # [B, 6] or [B, 1], of a regression
    weights: NDArray[np.float32]  # [B], of the task loss; all sum to 1; 0: padding rows and unlabelled ones
    examples: Int64s  # [B], number of the example in its split; -1: a padding row
    token_targets: NDArray[np.float32] | None = None  # [B, T, O], of spans and tags, times weights that sum to 1 in all
    target_tokens: Int64s | None = None  # [B, T'], of texts to write; padded at the end
    target_lengths: Int64s | None = None  # [B], the end symbol included; 0: none is known, or a padding row
    counted: int = 0  # of spans, tags and tokens to write, how many the loss of the whole batch is the mean over

    def rows(self, start: int, stop: int) -> TaskBatch:
        """Returns the examples [start, stop) of the batch, for one rank or micro-batch; weights stay those of the whole
        batch.
        """
        parts: dict[str, Any] = {
            name: part[start:stop] for name, part in vars(self).items() if isinstance(part, np.ndarray)
        }
        return replace(self, **parts)


def build_batch(encoded: Encoded, examples: Int64s, multiple: int = MULTIPLE) -> TaskBatch:
    """Returns the arrays of `examples` [B]; -1 stands for a padding row.

    LM weights: each sequence's tokens share one part equally, and each sequence of a real example has the same part, so
    that a sum with them is the mean over sequences of the means over tokens.
    """
    real = examples >= 0
    assert real.any(), "a batch holds at least one example"
    C = encoded.sequences
    lengths_BC = np.where(real[:, None], encoded.lengths[examples], 1)
    T = min(-(-int(lengths_BC.max()) // multiple) * multiple, encoded.limit)
    tokens_BCT = np.full((len(examples), C, T), encoded.pad, dtype=np.int32)
    for row, example in enumerate(examples.tolist()):
        for c in range(C if example >= 0 else 0):
            start, stop = encoded.offsets[example * C + c : example * C + c + 2]
            tokens_BCT[row, c, : stop - start] = encoded.tokens[start:stop]
    targets_BCT = np.arange(1, T) < lengths_BC[..., None]
    share_BC = real[:, None] / (np.maximum(lengths_BC - 1, 1) * (C * real.sum()))
    labels = np.where(real, encoded.labels[examples], NO_LABEL)
    token_targets, counted = None, 0
    if isinstance(encoded, TokenRows):
        token_targets, counted = encoded.token_targets(examples, T)
    target_tokens, target_lengths = None, None
    if isinstance(encoded, TargetRows):
        target_tokens, target_lengths = encoded.targets_of(examples)
        counted = int(target_lengths.sum())
    known = real & (labels != NO_LABEL if encoded.targets is None else np.isfinite(encoded.scores[examples]))
    return TaskBatch(
        tokens=tokens_BCT,
        lengths=lengths_BC,
        seconds=np.where(real[:, None], encoded.seconds[examples], 1),
        lm_weights=(targets_BCT * share_BC[..., None]).astype(np.float32),
        labels=labels,
        targets=None if encoded.targets is None else np.where(real[:, None], encoded.targets[examples], 0),
        weights=(known / max(1, known.sum())).astype(np.float32),
        examples=examples,
        token_targets=token_targets,
        target_tokens=target_tokens,
        target_lengths=target_lengths,
        counted=counted,
    )


def batches_per_epoch(examples: int, size: int) -> int:
    """Returns the number of whole batches in so many training examples. Raises DataError when there are fewer than one
    batch takes.
    """
    if examples < size:
        raise DataError(f"{examples} training examples are fewer than one batch; use train.global_batch={examples}")
    return examples // size


class TrainBatches:
    """Batches 0, 1, 2, ... of training, epoch after epoch, any of them at once.

    Of a mixture `parts` say what an epoch has of each task. Raises DataError when there are fewer examples than one
    batch takes.
    """

    def __init__(
        self, encoded: Encoded, size: int, seed: int, multiple: int = MULTIPLE, parts: Sequence[Draw] = ()
    ) -> None:
        self.per_epoch = batches_per_epoch(sum(one.taken for one in parts) or len(encoded), size)
        self._encoded, self._size, self._seed, self._multiple = encoded, size, seed, multiple
        self._mixed = parts
        self._longest = encoded.lengths.max(axis=1)
        self.order = lru_cache(maxsize=2)(self._draw)

    def at(self, number: int) -> TaskBatch:
        """Returns batch `number` of the run; `number // per_epoch` is its epoch."""
        epoch, k = divmod(number, self.per_epoch)
        return build_batch(self._encoded, self.order(epoch)[k], self._multiple)

    def padding_share(self) -> float:
        """Returns the fraction of the positions of the first epoch that hold no token."""
        lengths = self._encoded.lengths[self.order(0)]  # [per_epoch, size, C]
        longest = lengths.max(axis=(1, 2))
        wide = np.minimum(-(-longest // self._multiple) * self._multiple, self._encoded.limit)
        return 1 - float(lengths.sum()) / float(wide.sum() * lengths[0].size)

    def _draw(self, epoch: int) -> Int64s:
        """Returns int64 [per_epoch, size]: numbers of the examples of every batch of an epoch."""
        parts = (self._seed, self._encoded.data_hash, epoch)
        key = key_of("examples", *parts)
        if self._mixed:
            mixed = np.concatenate([one.numbers(epoch, *parts[:2]) for one in self._mixed])
            used = mixed[permute(np.arange(self.per_epoch * self._size), len(mixed), key)]
        else:
            used = permute(np.arange(self.per_epoch * self._size), len(self._encoded), key)
        pool = np.arange(len(used)) // (POOL * self._size)
        by_length = np.lexsort((self._longest[used], pool))  # stable: equal lengths stay in the order drawn
        batches = used[by_length].reshape(self.per_epoch, self._size)
        return batches[permute(np.arange(self.per_epoch), self.per_epoch, key_of("batches", *parts))]


def batches_by_length(encoded: Encoded, size: int, multiple: int = MULTIPLE) -> Iterator[TaskBatch]:
    """Yields all examples once, `size` at a time, from the longest to the shortest, which pads less:
    `TaskBatch.examples` says where each one belongs. Padding rows fill the last batch.
    """
    order = np.argsort(-encoded.lengths.max(axis=1), kind="stable")
    for start in range(0, len(encoded), size):
        examples = np.full(size, PADDING_ROW, dtype=np.int64)
        taken = order[start : start + size]
        examples[: len(taken)] = taken
        yield build_batch(encoded, examples, multiple)
