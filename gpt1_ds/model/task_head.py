"""The head of a fine-tuned model: a linear layer on the last hidden state of each sequence's extract token.

Shapes: S positions, B rows, D width, C sequences of one example (adjacent rows, B = E x C), O outputs of the head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.model import dropout, names
from gpt1_ds.model.layers import TensorParallel

HEAD_SITE = 1 << 20  # far after the dropout sites of any number of blocks


class TaskHead(nn.Module):
    """(hidden [S, B, D], keys) -> (hidden, scores [S, B, O]): a score at every position, of which the loss takes the
    extract token's, because positions do not travel through pipeline stages and labels reach the last one only.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(parameter.shape)) for parameter in layer.parameters)
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

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
