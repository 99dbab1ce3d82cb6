"""A family that is not there: pre-LayerNorm blocks without biases in their linear layers. One body is all it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpt1_ds.architecture.architecture import gpt_body
from gpt1_ds.architecture.layer import ONES, ZEROS, Layer, Parameter
from gpt1_ds.config import ModelConfig


def body(model: ModelConfig, lengths: tuple[int, ...]) -> Iterator[Layer]:
    for layer in gpt_body(model, lengths):
        if layer.kind == "block":
            kept = tuple(one for one in layer.parameters if "norm" in one.name or one.name.endswith("weight"))
            layer = replace(layer, parameters=kept, norm="pre")
        yield layer
    weight = Parameter("final_norm.weight", (model.width,), initial=ONES)
    yield Layer("norm", "final_norm", (weight, Parameter("final_norm.bias", (model.width,), initial=ZEROS)))
