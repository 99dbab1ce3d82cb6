"""The layers of a model in order.

tokens -> positions -> block 0 ... block L-1 -> head (mostly tied to tokens)         pre-training
tokens -> positions -> block 0 ... block L-1 -> task head -> head (tied to tokens)   fine-tuning
tokens -> positions -> encoder.0 ... encoder_norm -> decoder.0 ... decoder_norm -> head   two stacks
tokens -> lstm -> ...                                                                the paper's ablation

What lies between the tokens and the head is the body. A new kind of model is a body of its own, in BODIES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gpt1_ds.architecture.block import block, final_norm, positions
from gpt1_ds.architecture.costs import Costs, Elementwise, Sizes
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import NORMAL, ZEROS, Initial, Layer, Matrices, Parameter, linear, norm
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import RowLengths

TOKENS = "tokens"


def gpt_body(model: ModelConfig, lengths: tuple[int, ...]) -> Iterator[Layer]:
    """Yields positions, then blocks with the norm after their sub-layers (GPT-1) or before them (GPT-2), where a final
    norm ends the stack.
    """
    (length,) = lengths
    yield positions(model)
    for depth in range(model.layers):
        yield block(model, f"blocks.{depth}", depth, Sizes(length, length, causal=model.mask == "causal"))
    if model.norm == "pre":
        yield final_norm(model, "final_norm")


def encoder_decoder_body(model: ModelConfig, lengths: tuple[int, ...]) -> Iterator[Layer]:
    """Yields two stacks: the encoder reads the source, the decoder the target and, by cross attention, the encoder's
    last states (Vaswani et al. 2017; Raffel et al. 2020). The first layers embed both streams; the target's states
    travel through the encoder, the source's through the decoder.
    """
    source, target = lengths
    encoder, decoder = model.blocks
    fed = source + target
    yield positions(model)
    for depth in range(encoder):
        yield block(model, f"encoder.{depth}", depth, Sizes(source, fed, causal=False))
    yield final_norm(model, "encoder_norm")
    for depth in range(decoder):
        sizes = Sizes(target, fed, causal=True, memory=source)
        weights_of = f"encoder.{depth}" if model.shared else ""
        yield block(model, f"decoder.{depth}", encoder + depth, sizes, stack=1, weights_of=weights_of)
    yield final_norm(model, "decoder_norm", stack=1)


def lstm_body(model: ModelConfig, _lengths: tuple[int, ...]) -> Iterator[Layer]:
    """Yields the paper's LSTM (section 5): one recurrent layer in the place of all blocks, and a linear layer after it.
    Matrices of the cell start as torch.nn.LSTM's; the forget gates' bias is 1 (Gers et al. 2000, Jozefowicz et al.
    2015).
    """
    width, units = model.width, model.units
    cell, gates = Initial("uniform", units**0.5), Matrices(4, units)
    yield Layer(
        "lstm",
        "lstm",
        (
            Parameter("lstm.cell.weight_ih_l0", (4 * units, width), initial=cell, matrices=gates),
            Parameter("lstm.cell.weight_hh_l0", (4 * units, units), initial=cell, matrices=gates),
            Parameter("lstm.cell.bias_ih_l0", (4 * units,), initial=Initial("forget_gates", 1.0)),
            Parameter("lstm.cell.bias_hh_l0", (4 * units,), initial=ZEROS),
            Parameter("lstm.out.weight", (width, units), matrices=Matrices()),
            Parameter("lstm.out.bias", (width,), initial=ZEROS),
        ),
        depth=0,
        costs=Costs(products=2.0 * (4 * units * (width + units) + units * width)),
    )


BODIES: dict[str, Callable[[ModelConfig, tuple[int, ...]], Iterator[Layer]]] = {
    "gpt": gpt_body,
    "encoder_decoder": encoder_decoder_body,
    "lstm": lstm_body,
}


@dataclass(frozen=True)
class Architecture:
    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Returns canonical name -> every parameter, those of tied layers once."""
        return {parameter.name: parameter for layer in self.layers for parameter in layer.parameters}

    @cached_property
    def layer_of(self) -> dict[str, Layer]:
        """Returns canonical name -> the first layer that holds the parameter."""
        return {parameter.name: layer for layer in reversed(self.layers) for parameter in layer.parameters}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns canonical name -> shape, without vocabulary padding."""
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
    """Returns the model of a configuration, with the `head` of a task or as a language model that predicts this
    fraction of its tokens. `lengths` are the tokens of a row in each stack, a context if they are not given; costs
    depend on them.
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
    """Returns the architecture with the costs of pre-training on such rows, by which a pipeline is cut."""
    return architecture(model, vocab_size, head, row.predicted / row.fed, row.stacks)


def _head(model: ModelConfig, table: Parameter, predicted: float, joined: bool) -> Layer:
    prefix, tied = "tokens", TOKENS if model.tied else None
    if not model.tied:
        start = Initial("normal", model.width**-0.5) if model.init == "t5" else NORMAL
        prefix, table = "output", Parameter("output.weight", table.shape, 0, start, table.multiple)
    costs = Costs(products=2.0 * math.prod(table.shape) * predicted, saved=1.0)
    return Layer("head", prefix, (table,), costs=costs, tied=tied, joined=joined)


def _task_head(head: HeadSpec, width: int) -> Layer:
    if head.loss is not None:  # of two vectors and how they differ (Reimers and Gurevych 2019, equation in section 3)
        classes = tuple(linear(head.name, head.outputs, 3 * width)) if head.loss == "nli" else ()
        return Layer("task_head", head.name, classes, joined=not classes)
    scores = tuple(linear(head.name, head.outputs, width))
    if head.kind == "linear" or head.reads_tokens:
        return Layer("task_head", head.name, scores, costs=Costs(products=2.0 * width * head.outputs))
    return Layer("task_head", "", (*linear("pooler.dense", width, width), *scores))  # reads one state of a sequence


def _masked_head(table: Parameter, width: int, joined: bool) -> Layer:
    bias = Parameter("masked.bias", table.shape[:1], cut=0, initial=ZEROS, multiple=table.multiple)
    parameters = (*linear("masked.dense", width, width), *norm("masked.norm", width), bias)
    simple = Elementwise(activation=width, norm=width)
    costs = Costs(products=2.0 * width * width, elementwise=simple, saved=4.0)
    return Layer("masked_head", "masked", parameters, costs=costs, joined=joined)
