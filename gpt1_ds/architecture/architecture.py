"""The layers of a model in order.

tokens -> positions -> block 0 ... block L-1 -> head (tied to tokens)                pre-training
tokens -> positions -> block 0 ... block L-1 -> task head -> head (tied to tokens)   fine-tuning
tokens -> lstm -> ...                                                                the paper's ablation
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gpt1_ds.architecture import gpt, lstm
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import ZEROS, Layer, Parameter
from gpt1_ds.config import ModelConfig

TOKENS = "tokens"
BODIES: dict[str, Callable[[ModelConfig], Iterator[Layer]]] = {"gpt": gpt.body, "lstm": lstm.body}


@dataclass(frozen=True)
class Architecture:
    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Canonical name -> every parameter, those of tied layers once."""
        return {parameter.name: parameter for layer in self.layers for parameter in layer.parameters}

    @cached_property
    def layer_of(self) -> dict[str, Layer]:
        """Canonical name -> the first layer that holds the parameter."""
        return {parameter.name: layer for layer in reversed(self.layers) for parameter in layer.parameters}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape, without vocabulary padding."""
        return {name: parameter.shape for name, parameter in self.parameters.items()}

    def groups(self) -> list[list[Layer]]:
        """Runs of layers that a pipeline never cuts apart."""
        groups: list[list[Layer]] = []
        for layer in self.layers:
            if layer.joined:
                groups[-1].append(layer)
            else:
                groups.append([layer])
        return groups


@lru_cache(maxsize=1024)
def architecture(model: ModelConfig, vocab_size: int, head: HeadSpec | None = None) -> Architecture:
    """The model of a configuration, with the `head` of a task or as a language model."""
    table = Parameter("tokens.weight", (vocab_size, model.width), cut=0, multiple=model.vocab_multiple)
    language = head is None or head.lm_coefficient > 0
    layers = [Layer("tokens", "tokens", (table,), tied=TOKENS if language else None), *BODIES[model.kind](model)]
    if head is not None:
        weights = (
            Parameter("head.weight", (head.outputs, model.width)),
            Parameter("head.bias", (head.outputs,), initial=ZEROS),
        )
        layers.append(Layer("task_head", "head", weights, products=2.0 * model.width * head.outputs))
    if language:
        products = 2.0 * model.width * vocab_size
        layers.append(
            Layer("head", "tokens", (table,), products=products, saved=1.0, tied=TOKENS, joined=head is not None)
        )
    return Architecture(tuple(layers))
