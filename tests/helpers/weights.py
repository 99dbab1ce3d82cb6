"""Initial weights of a tiny model as plain tensors, and comparison of tensors by name."""

from __future__ import annotations

import numpy as np
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.config import ModelConfig
from gpt1_ds.model.names import ParameterInfo, initial_value


def initial_weights(model: ModelConfig, vocab_size: int, seed: int) -> dict[str, torch.Tensor]:
    parameters = architecture(model, vocab_size).parameters
    return {name: initial_value(ParameterInfo.whole(parameter), seed) for name, parameter in parameters.items()}


def without_key_bias(name: str, values: np.ndarray, heads: int) -> np.ndarray:
    """Gradients of key biases are pure rounding (softmax ignores them): compare the others."""
    return values.reshape(heads, 3, -1)[:, ::2] if name.endswith("qkv.bias") else values


def relative(name: str, got: np.ndarray, want: np.ndarray, heads: int) -> float:
    """|got - want| / |want|, Frobenius."""
    got, want = (without_key_bias(name, values, heads) for values in (got, want))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
