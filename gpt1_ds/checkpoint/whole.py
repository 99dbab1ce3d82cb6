"""A model in one process from parameters at their full shape, and what an imported model of sentence-transformers has
besides its encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import external
from gpt1_ds.checkpoint.shard import write_tensors
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import Config
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.names import ParameterInfo
from gpt1_ds.model.sentence_vector import SentenceVector

KEY = "sentence"  # of the manifest
WEIGHTS = "sentence.safetensors"


def write(folder: Path, vector: SentenceVector) -> dict[str, Any]:
    """Put the weights into a checkpoint that is being written; the value of KEY for its manifest."""
    if vector.weights:
        write_tensors(folder / WEIGHTS, vector.weights)
    return vector.values


def read(folder: Path, facts: dict[str, Any], width: int) -> SentenceVector | None:
    """What the manifest `facts` of a verified checkpoint describes, if it does. Raises CheckpointError."""
    if KEY not in facts:
        return None
    weights: dict[str, Tensor] = {}
    if WEIGHTS in facts["files"]:
        path = external.inside(folder, WEIGHTS)
        weights = dict(external.read_weights(path, external.safetensors_header(path)))
    try:
        vector = SentenceVector.of(facts[KEY], weights)
        vector.size(width)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder}: damaged: its sentence vector is not known here ({error!s:.120})") from None
    return vector


def head_of(folder: Path, facts: dict[str, Any]) -> HeadSpec | None:
    """The task's head that the manifest `facts` describes; None for a language model. Raises CheckpointError."""
    if "head" not in facts:
        return None
    try:
        head = HeadSpec(**facts["head"])
        if not head.is_sound:
            raise TypeError
        return head
    except TypeError:
        raise CheckpointError(f"{folder}: damaged: its manifest describes no head that this program knows") from None


def whole_model(config: Config, value: Callable[[ParameterInfo], Tensor], head: HeadSpec | None = None) -> DenseModel:
    """The dense model on the CPU in evaluation mode; `value` gives each parameter at its full shape, fp32."""
    assert config.model.vocab_size is not None, "saved configurations name the vocabulary size"
    model = DenseModel(config, config.model.vocab_size, TensorParallel(connect_alone()), head)
    with torch.no_grad():
        for parameter in model.parameters():
            info = names.info(parameter)
            rows = slice(0, info.shape[0])  # pad rows after them stay zero
            parameter[rows] = value(info)
    return model.eval()
