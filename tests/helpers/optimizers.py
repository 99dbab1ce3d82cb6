"""A module of a few weights of each kind, for update rules that look at whole parameters."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from gpt1_ds.architecture.layer import Matrices, Parameter
from gpt1_ds.engine.optimizer import Muon, WholeParameters
from gpt1_ds.engine.parts import Flat, Sums
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.names import ParameterInfo

WEIGHTS = {  # name -> shape, and how many matrices of which rows it is made of
    "out": ((24, 16), Matrices()),
    "qkv": ((2 * 3 * 4, 8), Matrices(3, 4)),  # two heads of four
    "up": ((2 * 20, 8), Matrices(2)),
    "table": ((30, 8), None),
    "norm": ((8,), None),
}
Rule = TypeVar("Rule", Muon, WholeParameters)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, (shape, matrices) in WEIGHTS.items():
            one = nn.Parameter(torch.randn(shape))
            one.info = ParameterInfo.whole(Parameter(name, shape, matrices=matrices))  # type: ignore[attr-defined]
            self.register_parameter(name, one)


def connected(optimizer: Rule, module: nn.Module) -> Rule:
    """The optimizer, once it knows that this process holds all of the weights."""
    optimizer.connect({one: Flat.whole(one.info) for one in module.parameters()}, Sums(connect_alone()))  # type: ignore[arg-type]
    return optimizer


def give_gradients(*modules: nn.Module) -> None:
    """The same to all of them."""
    for name in WEIGHTS:
        gradient = torch.randn(WEIGHTS[name][0])
        for module in modules:
            getattr(module, name).grad = gradient.clone()
