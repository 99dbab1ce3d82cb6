"""What an imported model of sentence-transformers has besides its encoder, in a checkpoint: a description in the
manifest, and the weights of dense layers in a file of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gpt1_ds.checkpoint import external
from gpt1_ds.checkpoint.shard import write_tensors
from gpt1_ds.common.errors import CheckpointError
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
