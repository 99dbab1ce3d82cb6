"""What passes from layer to layer, and from the last one to the loss.

Shapes: S positions, B rows, D width, N heads on this rank, K buckets of relative positions, O outputs of a task's head,
V vocabulary rows on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class States(NamedTuple):
    """The hidden states of each stack, and what travels with them. Heads add what the loss reads. (It is flat because
    torch's backward hooks see the tensors of a flat tuple alone.)
    """

    hidden_SBD: Tensor  # of the first stack; at first token ids [S, B]; after the last norm those of the last stack
    facts_BF: Tensor  # int64, of each row: architecture/facts.py
    decoder_SBD: Tensor | None = None  # of the second stack, where there is one
    tables: Tensor | None = None  # [stacks, N, K]: relative positions' parts of the scores
    scores: Tensor | None = None  # of a task's head: [S, B, O] or [1, B, O]; [E, K] of pairs of sentences
    vectors_BD: Tensor | None = None  # fp32, of each row's text
    bias_V: Tensor | None = None  # of a masked head's logits
    weight_VD: Tensor | None = None  # makes logits of the last states, those of all positions

    @classmethod
    def of(cls, stacks: Sequence[Tensor], facts_BF: Tensor, tables: Tensor | None = None) -> States:
        """Returns those of one stack or two."""
        return cls(stacks[0], facts_BF, stacks[1] if len(stacks) > 1 else None, tables)

    @property
    def stacks(self) -> tuple[Tensor, ...]:
        return (self.hidden_SBD,) if self.decoder_SBD is None else (self.hidden_SBD, self.decoder_SBD)

    @property
    def last(self) -> Tensor:
        """Returns the states [S, B, D] of the last stack, which heads read."""
        return self.hidden_SBD if self.decoder_SBD is None else self.decoder_SBD

    def with_stack(self, stack: int, x_SBD: Tensor) -> States:
        """Returns these states with `x` in the place of one stack's, for the next layer of a stack."""
        if stack == 0:
            return States(x_SBD, self.facts_BF, self.decoder_SBD, self.tables)
        return States(self.hidden_SBD, self.facts_BF, x_SBD, self.tables)

    def packed(self) -> tuple[Tensor, ...]:
        """Returns what DeepSpeed's pipeline sends to the next stage: tensors, the facts last."""
        tables = () if self.tables is None else (self.tables,)
        return (*self.stacks, *tables, self.facts_BF)

    @classmethod
    def unpacked(cls, tensors: tuple[Tensor, ...], relative: bool) -> States:
        """Returns the states of `packed`, in which the tables of relative positions lie until the last norm."""
        *stacks, facts_BF = tensors
        tables = stacks.pop() if relative and len(stacks) > 1 else None
        return cls.of(stacks, facts_BF, tables)
