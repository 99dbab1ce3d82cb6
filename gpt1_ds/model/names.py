"""Which parameter of the architecture a tensor is, which part of it this rank holds, and its initial weights: a pure
function of (seed, canonical name); the architecture says by which rule.

tokens.weight [V, D]   positions.weight [S, D]
blocks.I.attention.{qkv,out}.{weight,bias}   blocks.I.{attention_norm,mlp_norm}.{weight,bias}
blocks.I.mlp.{up,down}.{weight,bias}
segments.weight [2, D]   relative.weight   {embedding,final,encoder,decoder}_norm.{weight,bias}
encoder.I... and decoder.I... in the place of blocks.I...
decoder.I.cross.{q,kv,out}.{weight,bias}   decoder.I.cross_norm.{weight,bias}
masked.{dense,norm}.{weight,bias}   masked.bias [V]   of a masked language model
output.weight [V, D]   where the head is not tied to the token embeddings
head.weight [O, D]   head.bias [O]   of a fine-tuned model; of next sentences next_sentence.{weight,bias}
pooler.dense.{weight,bias}   where either of these reads one pooled state
lstm.cell.{weight,bias}_{ih,hh}_l0   lstm.out.{weight,bias}

A parameter is drawn at its full size, whatever part a rank keeps, so all layouts start from the same bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from gpt1_ds.architecture.layer import NORMAL, Initial, Layer, Matrices, Parameter

if TYPE_CHECKING:
    from gpt1_ds.model.layers import TensorParallel


@dataclass(frozen=True)
class ParameterInfo:
    """What a parameter is in the whole model, and which part of it this rank holds.

    `shape` is the whole parameter's, without vocabulary padding. Along `dim` (None: every tensor-parallel rank holds
    all of it) this rank holds [start, stop), `stop` clipped to the real size; its tensor may have pad rows after them.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    start: int = 0
    stop: int = 0
    initial: Initial = NORMAL
    matrices: Matrices | None = None
    level: int | None = None  # that of its layer

    @classmethod
    def whole(cls, parameter: Parameter) -> ParameterInfo:
        """Returns the parameter as a process sees it that holds all of it."""
        stop = 0 if parameter.cut is None else parameter.shape[parameter.cut]
        return cls(parameter.name, parameter.shape, parameter.cut, 0, stop, parameter.initial, parameter.matrices)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part, without pad rows."""
        if self.dim is None:
            return self.shape
        return (*self.shape[: self.dim], self.stop - self.start, *self.shape[self.dim + 1 :])


def label(module: nn.Module, layer: Layer, tensor: TensorParallel) -> None:
    """Attaches a ParameterInfo to every parameter of `module`, which is this layer; Megatron's attributes must
    agree.
    """
    known = {parameter.name: parameter for parameter in layer.parameters}
    for name, parameter in module.named_parameters():
        one, shape = known.pop(layer.full_name(name)), list(parameter.shape)
        dim = getattr(parameter, "partition_dim", -1) if getattr(parameter, "tensor_model_parallel", False) else None
        start = stop = 0
        if one.cut is not None:
            rows = one.local_rows(tensor.size)
            start, stop = (min(rank * rows, one.shape[one.cut]) for rank in (tensor.rank, tensor.rank + 1))
            assert shape[one.cut] == rows, f"{one.name} has {shape} here"
            shape[one.cut] = one.shape[one.cut]
        assert (tuple(shape), dim) == (one.shape, one.cut), f"{one.name} is {shape} cut along {dim}, not {one}"
        info = ParameterInfo(one.name, one.shape, dim, start, stop, one.initial, one.matrices, layer.level)
        parameter.info = info  # type: ignore[attr-defined]
    assert not known, f"the module lacks {list(known)}"


def share(module: nn.Module) -> None:
    """Keeps one of several parameters in `module` that are one of the architecture, in the place of all."""
    known: dict[str, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, known.setdefault(info(parameter).name, parameter))


def info(parameter: nn.Parameter) -> ParameterInfo:
    """Returns the label of a parameter. Raises AttributeError for one that no layer labelled (a bug of ours)."""
    return parameter.info  # type: ignore[attr-defined, no-any-return]


def initial_value(info: ParameterInfo, seed: int) -> Tensor:
    """Returns a fp32 tensor of `info.local_shape`: this rank's part of the initial parameter."""
    rule, number = info.initial.rule, info.initial.value
    if rule == "constant":
        return torch.full(info.local_shape, number)
    if rule == "forget_gates":  # nn.LSTM's gates are input, forget, cell, output; its second bias adds 0
        bias = torch.zeros(info.local_shape)
        bias.chunk(4)[1].fill_(number)
        return bias
    digest = hashlib.sha256(f"{seed}/{info.name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    if rule == "uniform":
        whole = (2 * generator.random(info.shape, dtype=np.float32) - 1) / np.float32(number)
    else:
        whole = generator.standard_normal(info.shape, dtype=np.float32)
        whole *= np.float32(number)
        if info.initial.head_dim:
            whole.reshape(-1, 3, info.initial.head_dim, whole.shape[-1])[:, 0] /= np.float32(info.initial.head_dim**0.5)
    value = torch.from_numpy(whole)
    return value if info.dim is None else value.narrow(info.dim, info.start, info.stop - info.start)
