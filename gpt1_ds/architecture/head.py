"""What a task asks of a model's head and of the loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadSpec:
    """Where `choice` is set, there is one output and the softmax is over an example's sequences. Elsewhere the states
    of an example's sequences are added (similarity reads both orders of its texts) and the softmax is over the outputs.
    """

    outputs: int
    sequences: int
    choice: bool = False
    dropout: float = 0.1
    lm_coefficient: float = 0.5  # weight of the language-model loss; at 0 the model has no tied head

    @property
    def is_sound(self) -> bool:
        """Whether a head can be made of what may have come from a file."""
        counts = all(type(count) is int and 1 <= count < 2**48 for count in (self.outputs, self.sequences))
        shares = all(type(share) in (int, float) and share >= 0 for share in (self.dropout, self.lm_coefficient))
        return counts and shares and self.dropout < 1 and type(self.choice) is bool
