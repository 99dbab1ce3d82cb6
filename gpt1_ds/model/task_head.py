"""What scores a sequence by one of its states: a linear layer on the extract token's, or a pooler and a linear layer on
the first token's.

Shapes: S positions, B rows, D width, C sequences of one example (adjacent rows, B = E x C), O outputs of the head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.model import dropout, names, products
from gpt1_ds.model.layers import Linear, TensorParallel

HEAD_SITE = 1 << 20  # far after the dropout sites of any number of blocks


class TaskHead(nn.Module):
    """(hidden [S, B, D], facts) -> (hidden, scores [S, B, O]): a score at every position, of which the loss takes the
    extract token's, because positions do not travel through pipeline stages and labels reach the last one only.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(parameter.shape)) for parameter in layer.parameters)
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden_SBD, facts_B3 = inputs
        dropped_SBD = hidden_SBD
        if self.training:
            dropped_SBD = hidden_SBD * _mask(hidden_SBD, facts_B3, self.spec, HEAD_SITE)
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        added = 1 if self.spec.choice else self.spec.sequences  # sequences whose scores are added get a share of it
        return hidden_SBD, self.tensor.all_positions(products.linear(dropped_SBD, weight, bias / added))


class PooledHead(nn.Module):
    """(hidden [S, B, D], facts) -> (hidden, scores [1, B, O]): tanh(dense(first state)), then a linear layer; dropout
    before it, and before the dense layer, too, if that is not a pooler that was trained before.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        dense, *_ = layer.parameters
        width = dense.shape[0]
        self.pooler = nn.ModuleDict({"dense": Linear(width, width)})
        self.add_module(spec.name, Linear(width, spec.outputs))
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden_SBD, facts_B3 = inputs
        state_1BD = self.tensor.all_positions(hidden_SBD[:1])[:1]  # of all ranks' first positions the first
        if self.spec.kind == "dense":
            state_1BD = self._drop(state_1BD, facts_B3, HEAD_SITE + 1)
        state_1BD = self._drop(torch.tanh(self.pooler["dense"](state_1BD)), facts_B3, HEAD_SITE)
        scores: Tensor = self.get_submodule(self.spec.name)(state_1BD)
        return hidden_SBD, scores

    def _drop(self, state_1BD: Tensor, facts_B3: Tensor, site: int) -> Tensor:
        return state_1BD * _mask(state_1BD, facts_B3, self.spec, site) if self.training else state_1BD


def _mask(hidden_SBD: Tensor, facts_B3: Tensor, spec: HeadSpec, site: int) -> Tensor:
    """[1, B, D]: one mask per example, shared by its sequences as in the authors' code, and by all positions."""
    C = spec.sequences
    key_B = facts_B3[:, KEY].view(-1, C)[:, :1].expand(-1, C).reshape(-1)
    return dropout.dropout(hidden_SBD.new_ones(1, *hidden_SBD.shape[1:]), key_B, site, spec.dropout)
