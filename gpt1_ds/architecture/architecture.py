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
from gpt1_ds.architecture.layer import ZEROS, Elementwise, Layer, Parameter, linear, norm
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
def architecture(
    model: ModelConfig, vocab_size: int, head: HeadSpec | None = None, predicted: float = 1.0
) -> Architecture:
    """The model of a configuration, with the `head` of a task or as a language model that predicts this fraction of
    its tokens.
    """
    table = Parameter("tokens.weight", (vocab_size, model.width), cut=0, multiple=model.vocab_multiple)
    width = model.width
    language = head is None or head.lm_coefficient > 0
    layers = [Layer("tokens", "tokens", (table,), tied=TOKENS if language else None), *BODIES[model.kind](model)]
    if head is not None:
        layers.append(_task_head(head, width))
    if language and model.head == "masked":
        layers.append(_masked_head(table, width, joined=head is not None))
    if language:
        joined = layers[-1].kind in ("task_head", "masked_head")
        layers.append(
            Layer(
                "head",
                "tokens",
                (table,),
                products=2.0 * width * vocab_size * predicted,
                saved=1.0,
                tied=TOKENS,
                joined=joined,
            )
        )
    return Architecture(tuple(layers))


def _task_head(head: HeadSpec, width: int) -> Layer:
    scores = tuple(linear(head.name, head.outputs, width))
    if head.kind == "linear":
        return Layer("task_head", head.name, scores, products=2.0 * width * head.outputs)
    return Layer("task_head", "", (*linear("pooler.dense", width, width), *scores))  # reads one state of a sequence


def _masked_head(table: Parameter, width: int, joined: bool) -> Layer:
    bias = Parameter("masked.bias", table.shape[:1], cut=0, initial=ZEROS, multiple=table.multiple)
    parameters = (*linear("masked.dense", width, width), *norm("masked.norm", width), bias)
    simple = Elementwise(activation=width, norm=width)
    return Layer(
        "masked_head", "masked", parameters, products=2.0 * width * width, elementwise=simple, saved=4.0, joined=joined
    )
