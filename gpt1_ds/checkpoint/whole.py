"""A model in one process from parameters at their full shape, and such a model as a checkpoint; what an imported model
of sentence-transformers has besides its encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import external
from gpt1_ds.checkpoint.manager import Contents, complete
from gpt1_ds.checkpoint.probe import probe_batch
from gpt1_ds.checkpoint.shard import Geometry, Slice, assemble, slice_of, write_shard, write_tensors
from gpt1_ds.common.errors import DamagedError
from gpt1_ds.common.files import published_folder
from gpt1_ds.config import Config, to_carried_yaml
from gpt1_ds.config.parallel import ParallelConfig
from gpt1_ds.data.tokenizers.base import read_files
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.names import ParameterInfo
from gpt1_ds.model.sentence_vector import SentenceVector
from gpt1_ds.objectives.base import Objective
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.kinds import from_values

KEY = "sentence"  # of the manifest
WEIGHTS = "sentence.safetensors"
TENSORS = "state/rank-00000.safetensors"  # of a checkpoint that one process writes


def write(folder: Path, vector: SentenceVector) -> dict[str, Any]:
    """Puts the weights into a checkpoint that is being written, and returns the value of KEY for its manifest."""
    if vector.weights:
        write_tensors(folder / WEIGHTS, vector.weights)
    return vector.values


def read(folder: Path, facts: dict[str, Any], width: int) -> SentenceVector | None:
    """Returns what the manifest `facts` of a verified checkpoint describes, if it does. Raises CheckpointError."""
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
        raise DamagedError(f"{folder}: damaged: its sentence vector is not known here ({error!s:.120})") from None
    return vector


def head_of(folder: Path, facts: dict[str, Any]) -> HeadSpec | None:
    """Returns the task's head that the manifest `facts` describes; None for a language model. Raises
    CheckpointError.
    """
    if "head" not in facts:
        return None
    try:
        head = HeadSpec(**facts["head"])
        if not head.is_sound:
            raise TypeError
        return head
    except TypeError:
        raise DamagedError(f"{folder}: damaged: its manifest describes no head that this program knows") from None


def task_of(folder: Path, facts: dict[str, Any]) -> Task | None:
    """Returns the task that a checkpoint was fine-tuned on, from its manifest; None for a language model. Raises
    CheckpointError.
    """
    try:
        return from_values(facts["task"]) if "task" in facts else None
    except (TypeError, ValueError, AttributeError):
        raise DamagedError(f"{folder}: damaged: its manifest describes no task that this program knows") from None


@torch.no_grad()
def of_engine(engine: Engine, config: Config, head: HeadSpec | None = None) -> DenseModel:
    """Returns a copy of an engine's language model, with the `head` of its objective, on the device of every rank, in
    fp32 and evaluation mode, whatever the layout. All ranks call this together; each has the whole model in memory.
    """
    here = master_weights.saved_fragments(engine)
    slices: dict[str, list[Slice]] = {}
    values: dict[str, Tensor] = {}
    of_ranks = engine.groups.gather([(one.info.name, slice_of(one)) for one in here])
    for rank, theirs in enumerate(of_ranks):
        counts = [part.count for _, part in theirs]
        flat = torch.empty(sum(counts), device=engine.device)
        if rank == engine.groups.rank and here:
            torch.cat([one.master for one in here], out=flat)
        dist.broadcast(flat, src=rank)
        for (name, part), elements in zip(theirs, flat.cpu().split(counts), strict=True):
            key = f"{name}/{len(values)}"
            values[key] = elements
            slices.setdefault(name, []).append(replace(part, key=key))
        del flat  # the model is not beside it on the device

    def read(part: Slice, first: int, count: int) -> Tensor:
        return values[part.key][first : first + count]

    def value(info: ParameterInfo) -> Tensor:
        geometry = Geometry.of(info.shape, info.dim)
        want = Slice(0, geometry.cut, 0, geometry.elements)
        return assemble(geometry, want, slices[info.name], read).view(info.shape)

    return whole_model(for_one_rank(config), value, head).to(engine.device)


def publish(
    out: Path,
    model: DenseModel,
    objective: Objective,
    config: Config,
    tokenizer: Path,
    facts: dict[str, Any],
    vector: SentenceVector | None,
) -> None:
    """Writes a model of this process as the checkpoint `out`, without moments and without the hash of any data, so that
    no run resumes from it as if it were its own. The model is run once, for the probe. `facts` of the manifest are
    those that are not the same for all such checkpoints.
    """
    example = probe_batch(objective, config.model)
    with torch.no_grad():
        loss = float(model(*example.inputs, *example.labels))
    facts = {
        **facts,
        "layout": {"tensor": 1, "pipeline": 1, "data": 1, "zero": 0, "pipelined": False},
        "precision": "fp32",
        "hashes": {**facts["hashes"], "data": ""},
        "loss_scaler": {},
        "probe": {"loss": loss, "precision": "fp32"},
    }
    pairs = [(names.info(parameter), parameter.detach()) for parameter in model.parameters()]
    fragments = [Fragment(info, 0, value[: info.shape[0]].reshape(-1)) for info, value in pairs]  # without pad rows
    with published_folder(out) as folder:
        (folder / "state").mkdir()
        if vector is not None:
            facts[KEY] = write(folder, vector)
        contents = Contents(facts["step"], facts, to_carried_yaml(config), read_files(tokenizer))
        complete(folder, contents, [write_shard(folder, TENSORS, fragments)])


def for_one_rank(config: Config) -> Config:
    """Returns the configuration of the same model on one rank, which recomputes nothing."""
    return replace(config, parallel=ParallelConfig(), train=replace(config.train, recompute="none"))


def whole_model(config: Config, value: Callable[[ParameterInfo], Tensor], head: HeadSpec | None = None) -> DenseModel:
    """Returns the dense model on the CPU in evaluation mode; `value` gives each parameter at its full shape, fp32."""
    assert config.model.vocab_size is not None, "saved configurations name the vocabulary size"
    model = DenseModel(config, config.model.vocab_size, TensorParallel(connect_alone()), head)
    with torch.no_grad():
        for parameter in model.parameters():
            info = names.info(parameter)
            rows = slice(0, info.shape[0])  # pad rows after them stay zero
            parameter[rows] = value(info)
    return model.eval()
