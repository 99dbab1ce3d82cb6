"""The head of a fine-tuned model: a linear layer on the last hidden state of each sequence's extract token.

Shapes: S positions, B rows, D width, C sequences of one example (adjacent rows, B = E x C), O outputs of the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt1_ds.config import ModelConfig
from gpt1_ds.model import dropout, names
from gpt1_ds.model.layers import TensorParallel

HEAD_SITE = 1 << 20  # far behind the dropout sites of any number of blocks


@dataclass(frozen=True)
class HeadSpec:
    """What a task asks of the head and the loss.

    Where `choice` is set, O is 1 and the softmax is over an example's C sequences. Elsewhere the C sequences' states
    are added (similarity reads both orders of its texts) and the softmax is over the O outputs.
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


class TaskHead(nn.Module):
    """(hidden [S, B, D], keys) -> (hidden, scores [S, B, O]): a score at every position, of which the loss takes the
    extract token's, because positions do not travel through pipeline stages and labels reach the last one only.
    """

    def __init__(self, model: ModelConfig, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(spec.outputs, model.width))
        self.bias = nn.Parameter(torch.zeros(spec.outputs))
        self.spec, self.tensor = spec, tensor
        names.label(self, "head", tensor)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden_SBD, keys_B = inputs
        dropped_SBD = hidden_SBD * self._mask(hidden_SBD, keys_B) if self.training else hidden_SBD
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        added = 1 if self.spec.choice else self.spec.sequences  # sequences whose scores are added get a share of it
        return hidden_SBD, self.tensor.all_positions(F.linear(dropped_SBD, weight, bias / added))

    def _mask(self, hidden_SBD: Tensor, keys_B: Tensor) -> Tensor:
        """[1, B, D]: one mask per example, shared by its sequences as in the authors' code, and by all positions."""
        C = self.spec.sequences
        key_B = keys_B.view(-1, C)[:, :1].expand(-1, C).reshape(-1)
        return dropout.dropout(hidden_SBD.new_ones(1, *hidden_SBD.shape[1:]), key_B, HEAD_SITE, self.spec.dropout)
