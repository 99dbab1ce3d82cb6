"""A module of a few weights of each kind, for update rules that look at whole parameters."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.layer import Matrices, Parameter
from gpt1_ds.engine.muon import Muon
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.engine.ranges import FlatContents, LocalRange, ShardRange, StageSums, WholeParameter
from gpt1_ds.engine.whole_parameters import WholeParameters
from gpt1_ds.model.names import ParameterInfo

WEIGHTS = {  # name -> shape, and how many matrices of which rows it is made of
    "out": ((24, 16), Matrices()),
    "qkv": ((2 * 3 * 4, 8), Matrices(3, 4)),  # two heads of four
    "up": ((2 * 20, 8), Matrices(2)),
    "table": ((30, 8), None),
    "norm": ((8,), None),
    "qkv_bias": ((2 * 3 * 4,), None),
    "relative": ((2, 4, 6), None),  # a table for each stack
}
FUSED = {"qkv_bias": Matrices(3, 4), "relative": Matrices(2, 4)}
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
    contents = {}
    for name, one in module.named_parameters():
        info: ParameterInfo = one.info  # type: ignore[assignment]
        whole = WholeParameter(info, FUSED.get(name) or WEIGHTS[name][1] or Matrices())
        local = LocalRange(ShardRange(info, 0, one.numel()), whole, 0, True, one.device)
        contents[one] = FlatContents([whole], [local])
    optimizer.connect(contents, StageSums(connect_alone()))  # type: ignore[arg-type]
    return optimizer


def give_gradients(*modules: nn.Module) -> None:
    """The same to all of them."""
    for name in WEIGHTS:
        gradient = torch.randn(WEIGHTS[name][0])
        for module in modules:
            getattr(module, name).grad = gradient.clone()


def split(name: str, whole: Tensor) -> dict[str, Tensor]:
    """The matrices of a weight and the vectors of a bias, by hand: qkv are [heads, 3, head width] rows, up is
    [features, 2].
    """
    if name.startswith("qkv"):
        parts = whole.view(2, 3, 4, *whole.shape[1:])
        return {part: parts[:, i].reshape(8, *whole.shape[1:]) for i, part in enumerate("qkv")}
    if name == "up":
        return {"gate": whole[0::2], "value": whole[1::2]}
    if name == "relative":
        return dict(zip(("encoder", "decoder"), whole, strict=True))
    return {"": whole}
