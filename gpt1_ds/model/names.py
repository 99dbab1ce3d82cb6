"""Canonical parameter names: the same on every layout, in checkpoints, in the initialiser and in exports.

    tokens.weight [V, D]   positions.weight [S, D]
    blocks.I.attention.{qkv,out}.{weight,bias}   blocks.I.{attention_norm,mlp_norm}.{weight,bias}
    blocks.I.mlp.{up,down}.{weight,bias}
    head.weight [O, D]   head.bias [O]          of a fine-tuned model
    lstm.cell.{weight,bias}_{ih,hh}_l0   lstm.out.{weight,bias}

The fused query-key-value matrix is stored head by head ([N, 3, H, D] as rows), so that a range of its rows is a range
of whole heads and every tensor-parallel size cuts it the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.nn import Parameter

if TYPE_CHECKING:
    from gpt1_ds.model.layers import TensorParallel


@dataclass(frozen=True)
class ParameterInfo:
    """What a parameter is in the whole model, and which part of it this rank holds.

    `shape` is the whole parameter's, without vocabulary padding. Along `dim` (None: every tensor-parallel rank holds
    all of it) this rank holds [start, stop), `stop` clipped to the real size; its tensor may have pad rows behind.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    start: int = 0
    stop: int = 0

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part, without pad rows."""
        if self.dim is None:
            return self.shape
        return (*self.shape[: self.dim], self.stop - self.start, *self.shape[self.dim + 1 :])


def label(module: nn.Module, prefix: str, tensor: TensorParallel, vocab_size: int | None = None) -> None:
    """Attach a ParameterInfo to every parameter of `module`, read off the attributes Megatron's layers set.

    `vocab_size` replaces the first, padded dimension of an embedding.
    """
    for name, parameter in module.named_parameters():
        shape = list(parameter.shape)
        dim = getattr(parameter, "partition_dim", -1) if getattr(parameter, "tensor_model_parallel", False) else None
        start = stop = 0
        if dim is not None:
            part = shape[dim]
            shape[dim] = vocab_size or part * tensor.size
            start = min(tensor.rank * part, shape[dim])
            stop = min(start + part, shape[dim])
        info = ParameterInfo(f"{prefix}.{name}", tuple(shape), dim, start, stop)
        parameter.info = info  # type: ignore[attr-defined]


def info(parameter: Parameter) -> ParameterInfo:
    """The label of a parameter. Raises AttributeError for one that no stage labelled (a bug of ours)."""
    return parameter.info  # type: ignore[attr-defined, no-any-return]
