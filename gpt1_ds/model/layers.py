"""Megatron-core's tensor-parallel layers as this model uses them: groups passed in, initialised by name, safe on a CPU.

Shapes: S positions (of this rank, under sequence parallelism), B rows, D width, O outputs on this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from megatron.core import tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gpt1_ds.model import products
from gpt1_ds.model.kernels.gelu import bias_activation

Activation = Literal["gelu_tanh", "gelu", "relu", "gated_gelu"]


@dataclass(frozen=True)
class TensorParallel:
    """The ranks that share each matrix, and whether they also cut the sequence between matrices."""

    group: ProcessGroup
    sequence: bool = False

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def rank(self) -> int:
        return self.group.rank()

    @cached_property
    def config(self) -> ModelParallelConfig:
        # Real values are written by name later (names.py). Initialising to zero keeps the attributes that tell shards
        # from replicas, and vocabulary pad rows stay zero for ever: garbage there would turn 0 * NaN into NaN
        # gradients.
        return ModelParallelConfig(
            tensor_model_parallel_size=self.size,
            sequence_parallel=self.sequence,
            use_cpu_initialization=True,
            params_dtype=torch.float32,
        )

    def replicated(self, parameter: Tensor) -> Tensor:
        """Returns `parameter` as a sequence-parallel rank must use it: its gradient is summed over the ranks'
        positions.
        """
        if not self.sequence:
            return parameter
        return tensor_parallel.copy_to_tensor_model_parallel_region(parameter, group=self.group)  # type: ignore[no-any-return]

    def first_position(self, x_SBD: Tensor) -> int:
        """Returns which position of the row is the first one of this rank."""
        return self.rank * x_SBD.shape[0] if self.sequence else 0

    def all_positions(self, x_SBO: Tensor) -> Tensor:
        """Returns sequence-parallel ranks' positions together, for what every rank then computes alike."""
        if not self.sequence:
            return x_SBO
        return tensor_parallel.gather_from_sequence_parallel_region(  # type: ignore[no-any-return]
            x_SBO, tensor_parallel_output_grad=False, group=self.group
        )


def _relu(x_F: Tensor, bias_F: Tensor) -> Tensor:
    return torch.relu(x_F + bias_F)


def _gated_gelu(x_F: Tensor, bias_F: Tensor) -> Tensor:
    """Returns gelu_tanh(gate) x value, [..., F / 2], of gate and value side by side (Shazeer 2020)."""
    gate_F, gate_bias_F = x_F[..., ::2].contiguous(), bias_F[::2].contiguous()
    return bias_activation(gate_F, gate_bias_F, "gelu_tanh") * (x_F[..., 1::2] + bias_F[1::2])


# (x [..., F], bias [F]) -> activation(x + bias), of x's type
ACTIVATIONS: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu_tanh": partial(bias_activation, kind="gelu_tanh"),
    "gelu": partial(bias_activation, kind="gelu"),
    "relu": _relu,
    "gated_gelu": _gated_gelu,
}


def cut_parameter(*shape: int, dim: int = 0) -> nn.Parameter:
    """Zeros, this rank's part of a parameter that tensor-parallel ranks share along `dim`."""
    parameter = nn.Parameter(torch.zeros(shape))
    tensor_parallel.set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=dim, stride=1)
    return parameter


class Linear(nn.Linear):
    """x [..., D] -> [..., O], the same on every rank."""

    def forward(self, x: Tensor) -> Tensor:
        return products.linear(x, self.weight, self.bias)


def _fuses_bias(x_SBD: Tensor, group: ProcessGroup) -> bool:
    """Returns whether a GPU adds the bias within the product, where it costs nothing: in compiled blocks, and where no
    gradient is asked for. (Elsewhere, and on a CPU, Megatron adds it after the product.)
    """
    return x_SBD.is_cuda and group.size() == 1 and (torch.compiler.is_compiling() or not torch.is_grad_enabled())


class ColumnProduct(tensor_parallel.ColumnParallelLinear):
    """Megatron's layer: x [S, B, D] -> ([S, B, O], bias that is not added yet). The outputs are cut over the ranks."""

    def __init__(self, inputs: int, outputs: int, tensor: TensorParallel, bias: bool, **arguments: bool) -> None:
        config, group = tensor.config, tensor.group
        super().__init__(
            inputs, outputs, config=config, init_method=nn.init.zeros_, bias=bias, tp_group=group, **arguments
        )

    def _forward_impl(self, input, weight, **arguments):  # type: ignore[no-untyped-def]
        if _fuses_bias(input, self.tp_group):
            return nn.functional.linear(input, weight, arguments["bias"])
        if not (torch.compiler.is_compiling() or products.slow(input)):
            return super()._forward_impl(input, weight, **arguments)
        # Megatron starts a collective of the backward pass asynchronously, where a compiled graph breaks, and
        # multiplies as torch does
        if arguments["sequence_parallel"]:
            input = tensor_parallel.gather_from_sequence_parallel_region(input, group=self.tp_group)
        elif arguments["allreduce_dgrad"]:
            input = tensor_parallel.copy_to_tensor_model_parallel_region(input, group=self.tp_group)
        return products.linear(input, weight, arguments["bias"])


class ColumnParallel(ColumnProduct):
    """x [S, B, D] -> [S, B, O]."""

    def forward(self, x_SBD: Tensor) -> Tensor:
        return super().forward(x_SBD)[0]  # type: ignore[no-any-return]


class ColumnParallelActivation(ColumnProduct):
    """x [S, B, D] -> [S, B, O]: ColumnParallel and the activation, which adds the bias itself. A gated one has two
    outputs for each feature, gate and value, next to one another.
    """

    def __init__(self, inputs: int, outputs: int, activation: Activation, tensor: TensorParallel, bias: bool) -> None:
        super().__init__(inputs, outputs, tensor, bias, skip_bias_add=True)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_SBD: Tensor) -> Tensor:
        y_SBO, bias_O = super().forward(x_SBD)
        bias_O = y_SBO.new_zeros(y_SBO.shape[-1]) if bias_O is None else bias_O
        return self.activation(y_SBO, bias_O)


class RowParallel(tensor_parallel.RowParallelLinear):
    """x [S, B, inputs on this rank] -> [S, B, D]: partial sums are reduced over the ranks, then the bias is added."""

    def __init__(self, inputs: int, outputs: int, tensor: TensorParallel, bias: bool) -> None:
        super().__init__(
            inputs,
            outputs,
            config=tensor.config,
            init_method=nn.init.zeros_,
            bias=bias,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_group=tensor.group,
        )
        self.tensor = tensor

    def _forward_impl(self, input, weight, **arguments):  # type: ignore[no-untyped-def]
        if torch.compiler.is_compiling() or products.slow(input):
            return products.linear(input, weight)
        return super()._forward_impl(input, weight, **arguments)

    def forward(self, x_SBI: Tensor) -> Tensor:
        if _fuses_bias(x_SBI, self.tp_group):
            return nn.functional.linear(x_SBI, self.weight, self.bias)
        output_SBD, bias_D = super().forward(x_SBI)
        return output_SBD if bias_D is None else output_SBD + self.tensor.replicated(bias_D)  # type: ignore[no-any-return]
