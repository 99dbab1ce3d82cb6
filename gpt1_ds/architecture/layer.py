"""One layer of a model and its parameters.

The model builder, the initialiser, the pipeline cut, the planner, the counter, the checkpoint and the Hugging Face map
all read these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gpt1_ds.architecture.costs import Costs


@dataclass(frozen=True)
class Initial:
    """How a parameter starts: N(0, value), U(-1/value, 1/value), or `value` everywhere (of an LSTM's bias, at its
    forget gates alone). Of rows that are the queries, keys and values of each head in turn, those of the queries are
    divided by the root of `head_dim`, if it is set.
    """

    rule: Literal["normal", "uniform", "constant", "forget_gates"]
    value: float
    head_dim: int = 0


@dataclass(frozen=True)
class Matrices:
    """What a weight between hidden states is made of: its rows are `rows` of each of `count` matrices in turn."""

    count: int = 1
    rows: int = 1


NORMAL, ZEROS, ONES = Initial("normal", 0.02), Initial("constant", 0.0), Initial("constant", 1.0)


@dataclass(frozen=True)
class Parameter:
    """`shape` is the whole parameter's, as in a checkpoint. Along `cut` (None: not at all) tensor-parallel ranks share
    it. Vocabulary rows are padded to a multiple of `multiple` and of those ranks.
    """

    name: str  # canonical: the same on every layout, in checkpoints and in exports
    shape: tuple[int, ...]
    cut: int | None = None
    initial: Initial = NORMAL
    multiple: int = 1
    matrices: Matrices | None = None  # None: a table, a vector, or part of a head

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def local_rows(self, tensor: int) -> int:
        """Returns the length of one rank's part along `cut`, padding included, where `tensor` ranks share it."""
        assert self.cut is not None, f"{self.name} is not cut"
        return padded(self.shape[self.cut], self.multiple, tensor) // tensor

    def local_size(self, tensor: int) -> int:
        """Returns the number of elements on one of `tensor` ranks, padding included."""
        return self.size if self.cut is None else self.size // self.shape[self.cut] * self.local_rows(tensor)


def linear(
    name: str,
    outputs: int,
    inputs: int,
    cut: int | None = None,
    initial: Initial = NORMAL,
    bias: bool = True,
    matrices: Matrices | None = None,
) -> Iterator[Parameter]:
    """Yields a matrix [outputs, inputs] and its bias; where the outputs are cut, so is the bias."""
    yield Parameter(f"{name}.weight", (outputs, inputs), cut, initial, matrices=matrices)
    if bias:
        yield Parameter(f"{name}.bias", (outputs,), 0 if cut == 0 else None, ZEROS)


def norm(name: str, width: int, kind: Literal["layer", "rms"] = "layer") -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,), initial=ONES)
    if kind == "layer":
        yield Parameter(f"{name}.bias", (width,), initial=ZEROS)


@dataclass(frozen=True)
class Layer:
    """An entry of the list."""

    kind: Literal["tokens", "positions", "block", "lstm", "norm", "task_head", "masked_head", "head"]
    prefix: str  # of the names of its parameters; empty where they have none in common
    parameters: tuple[Parameter, ...]
    depth: int | None = None  # number of the block; None at both ends of the model
    stack: int = 0  # that it belongs to; 1 is an encoder-decoder's decoder
    norm: Literal["post", "pre"] = "post"  # where a block normalises: sums, or what attention and mlp read
    causal: bool = False  # whether a block's tokens see themselves and those before them alone
    tied: str | None = None  # layers with the same key share one module
    weights_of: str = ""  # prefix of the block whose weights it has, cross attention apart; empty: its own
    joined: bool = False  # is never cut apart from the layer before it
    costs: Costs = field(default_factory=Costs)

    @property
    def level(self) -> int | None:
        """Returns its place from below: 0 of the embeddings, 1 of the first block; None of what is above all blocks."""
        if self.kind in ("tokens", "positions") or (self.kind == "head" and self.tied is not None):
            return 0
        return None if self.depth is None else self.depth + 1

    def has(self, name: str) -> bool:
        """Returns whether it has the parameter of this name, without the prefix."""
        return any(parameter.name == self.full_name(name) for parameter in self.parameters)

    def full_name(self, name: str) -> str:
        """Returns the canonical name of the parameter that its module calls `name`."""
        prefix = self.prefix if name.startswith("cross") else self.weights_of or self.prefix
        return f"{prefix}.{name}" if prefix else name

    @cached_property
    def matrices(self) -> tuple[int, ...]:
        """Returns the elements of each matrix."""
        return tuple(parameter.size for parameter in self.parameters if len(parameter.shape) > 1)


def padded(size: int, multiple: int, ranks: int) -> int:
    """Returns the smallest number >= size that `multiple` and the number of tensor-parallel ranks both divide."""
    step = math.lcm(multiple, ranks)
    return -(-size // step) * step
