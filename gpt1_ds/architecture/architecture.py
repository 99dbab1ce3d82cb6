"""The layers of a model in order.

tokens -> positions -> block 0 ... block L-1 -> head (mostly tied to tokens)         pre-training
tokens -> positions -> block 0 ... block L-1 -> task head -> head (tied to tokens)   fine-tuning
tokens -> lstm -> ...                                                                the paper's ablation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gpt1_ds.architecture import encoder_decoder, gpt, lstm
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import NORMAL, ZEROS, Elementwise, Initial, Layer, Parameter, linear, norm
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import RowLengths

TOKENS = "tokens"
BODIES: dict[str, Callable[[ModelConfig, tuple[int, ...]], Iterator[Layer]]] = {
    "gpt": gpt.body,
    "encoder_decoder": encoder_decoder.body,
    "lstm": lstm.body,
}


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
    model: ModelConfig,
    vocab_size: int,
    head: HeadSpec | None = None,
    predicted: float = 1.0,
    lengths: tuple[int, ...] | None = None,
) -> Architecture:
    """The model of a configuration, with the `head` of a task or as a language model that predicts this fraction of
    its tokens. `lengths` are the tokens of a row in each stack, a context if they are not given; costs depend on them.
    """
    start = Initial("normal", 1.0) if model.init == "t5" else NORMAL
    table = Parameter("tokens.weight", (vocab_size, model.width), 0, start, model.vocab_multiple)
    width = model.width
    language = head is None or head.lm_coefficient > 0
    tied = TOKENS if language and model.tied else None
    body = BODIES[model.kind](model, lengths or (model.context,) * model.stacks)
    layers = [Layer("tokens", "tokens", (table,), tied=tied), *body]
    if head is not None and head.kind != "text":
        layers.append(_task_head(head, width))
    if language and model.head == "masked":
        layers.append(_masked_head(table, width, joined=head is not None))
    if language:
        joined = layers[-1].kind in ("task_head", "masked_head")
        layers.append(_head(model, table, predicted, joined))
    return Architecture(tuple(layers))


def pretrained_architecture(
    model: ModelConfig, vocab_size: int, head: HeadSpec | None, row: RowLengths
) -> Architecture:
    """With the costs of pre-training on such rows, by which a pipeline is cut."""
    return architecture(model, vocab_size, head, row.predicted / row.fed, row.stacks)


def _head(model: ModelConfig, table: Parameter, predicted: float, joined: bool) -> Layer:
    prefix, tied = "tokens", TOKENS if model.tied else None
    if not model.tied:
        start = Initial("normal", model.width**-0.5) if model.init == "t5" else NORMAL
        prefix, table = "output", Parameter("output.weight", table.shape, 0, start, table.multiple)
    products = 2.0 * math.prod(table.shape) * predicted
    return Layer("head", prefix, (table,), products=products, saved=1.0, tied=tied, joined=joined)


def _task_head(head: HeadSpec, width: int) -> Layer:
    if head.loss is not None:  # of two vectors and how they differ (Reimers and Gurevych 2019, equation in section 3)
        classes = tuple(linear(head.name, head.outputs, 3 * width)) if head.loss == "nli" else ()
        return Layer("task_head", head.name, classes, joined=not classes)
    scores = tuple(linear(head.name, head.outputs, width))
    if head.kind == "linear" or head.reads_tokens:
        return Layer("task_head", head.name, scores, products=2.0 * width * head.outputs)
    return Layer("task_head", "", (*linear("pooler.dense", width, width), *scores))  # reads one state of a sequence


def _masked_head(table: Parameter, width: int, joined: bool) -> Layer:
    bias = Parameter("masked.bias", table.shape[:1], cut=0, initial=ZEROS, multiple=table.multiple)
    parameters = (*linear("masked.dense", width, width), *norm("masked.norm", width), bias)
    simple = Elementwise(activation=width, norm=width)
    return Layer(
        "masked_head", "masked", parameters, products=2.0 * width * width, elementwise=simple, saved=4.0, joined=joined
    )
