"""How many sequences each step has. With a batch warm-up (Brown et al. 2020, appendix B) the batch grows linearly with
the tokens that were read, from a few sequences to the full batch.

A batch's size is a function of its number and the configuration, never of the layout. Every size is a multiple of the
first, so that a layout on which the first batch splits into micro-batches splits all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

ROUNDING = 1e-9  # of a step: positions are fractions


class NumberedBatch(NamedTuple):
    """The batch of a step (1 is the first): sequences of all batches before it, and its own."""

    step: int
    before: int
    size: int


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of batches 1, 2, 3, ...: `changes` are the first batches of every size, in ascending order."""

    changes: tuple[NumberedBatch, ...]

    @classmethod
    def constant(cls, size: int) -> BatchSizes:
        return cls((NumberedBatch(1, 0, size),))

    @classmethod
    def growing(cls, first: int, full: int, tokens: int, row: int) -> BatchSizes:
        """From `first` sequences of `row` tokens to `full`, a multiple of it, after `tokens`. After c tokens a batch
        has first x (1 + floor(c x (full / first - 1) / tokens)) sequences.
        """
        increments, found = full // first - 1, [NumberedBatch(1, 0, first)]
        while (here := found[-1]).size < full:
            reached = here.size // first
            until = -(-tokens * reached // (row * increments))  # sequences after which the next ones are larger
            steps = -(-(until - here.before) // here.size)
            before = here.before + steps * here.size
            size = min(full, first * (1 + before * row * increments // tokens))
            found.append(NumberedBatch(here.step + steps, before, size))
        return cls(tuple(found))

    @property
    def full(self) -> int:
        return self.changes[-1].size

    def size(self, step: int) -> int:
        """Returns the number of sequences of batch `step`."""
        return self.batch(step).size

    def before(self, step: int) -> int:
        """Returns the number of sequences of all batches before `step`, at which its own are numbered from."""
        return self.batch(step).before

    def position(self, step: int) -> float:
        """Returns where a run is after `step` steps, in full batches; without a warm-up these are its steps."""
        return step if len(self.changes) == 1 else self.before(step + 1) / self.full

    def steps(self, position: float) -> int:
        """Returns the fewest steps after which a run has come to `position`."""
        if len(self.changes) == 1:
            return math.ceil(position)
        sequences = position * self.full
        at = bisect_left(self.changes, sequences, key=lambda batch: batch.before)
        first, before, size = self.changes[max(0, at - 1)]
        return first - 1 + math.ceil((sequences - before) / size - ROUNDING)

    def batch(self, step: int) -> NumberedBatch:
        first, before, size = self.changes[bisect_right(self.changes, step, key=lambda batch: batch.step) - 1]
        return NumberedBatch(step, before + (step - first) * size, size)
