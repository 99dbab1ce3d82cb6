"""What a masked language model has between its last block and the tied matrix (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import names, products
from gpt1_ds.model.layers import ACTIVATIONS, Activation, LayerNorm, TensorParallel, cut_parameter


class Dense(nn.Linear):
    """[S, B, D] -> [S, B, D]: a linear layer and the activation."""

    def __init__(self, width: int, activation: Activation, tensor: TensorParallel) -> None:
        super().__init__(width, width)
        self.activation, self.tensor = ACTIVATIONS[activation], tensor

    def forward(self, hidden_SBD: Tensor) -> Tensor:
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        return self.activation(products.linear(hidden_SBD, weight), bias)


class MaskedHead(nn.Module):
    """(hidden [S, B, D], other) -> (LN(activation(W hidden)) [S, B, D], bias of the logits [V on this rank], other).

    The bias belongs to this layer and not to the tied module, whose copies on other stages would need one, too.
    """

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.dense = Dense(model.width, model.activation, tensor)
        self.norm = LayerNorm(model.width, model.norm_eps, tensor)
        bias = next(parameter for parameter in layer.parameters if parameter.cut is not None)
        self.bias = cut_parameter(bias.local_rows(tensor.size))
        names.label(self, layer, tensor)

    def forward(self, inputs: tuple[Tensor, Any]) -> tuple[Tensor, Tensor, Any]:
        hidden_SBD, other = inputs
        hidden_SBD = self.norm(self.dense(hidden_SBD))
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return hidden_SBD, self.bias.view_as(self.bias), other
