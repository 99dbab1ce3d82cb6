"""`checkpoint average`: the mean of a run's last checkpoints, as one checkpoint to evaluate or to fine-tune.

It is made of saved weights, at any time after them: training stays as it is, and since checkpoints have no layout, so
has their mean. A moving average inside a step would cost memory on every rank and a part of every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import manifest, whole
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.manager import Contents, complete
from gpt1_ds.checkpoint.probe import probe_batch
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import write_shard
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import published_folder
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_carried, to_carried_yaml
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.model import names
from gpt1_ds.objectives.base import Objective
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.objectives.source_target import SourceToTarget
from gpt1_ds.objectives.supervised import of_head

KEPT = ("tokens", "updates", "seed", "head", "task", whole.KEY)  # of the newest checkpoint's manifest
SHARD = "state/rank-00000.safetensors"


def average_checkpoints(run: Path, last: int, out: Path) -> list[Path]:
    """Write the mean of the `last` checkpoints of a run folder as the checkpoint `out`, which has no moments; the
    checkpoints. Raises CheckpointError.
    """
    found = steps_in(RunDir(run).checkpoints)
    if last < 2:
        raise CheckpointError(f"--last {last}: is no mean; use 2 or more")
    if len(found) < last:
        raise CheckpointError(
            f"{run}: has {len(found)} checkpoints, --last {last} asks for more; use fewer, or let a run keep them "
            f"(checkpoint.keep={last})"
        )
    folders = found[-last:]
    for folder in folders[:-1]:
        verify_files(folder, manifest.read(folder))
    newest = load_checkpoint(folders[-1], "cpu")  # verifies it, too
    readers = [StateReader(folder) for folder in folders]
    weights: dict[str, Tensor] = {}
    with torch.no_grad():
        for parameter in newest.model.parameters():
            info = names.info(parameter)
            weights[info.name] = mean([reader.whole("master", info) for reader in readers])
            parameter[: info.shape[0]] = weights[info.name]
    facts = manifest.read(folders[-1])
    config = load_carried(folders[-1] / "config.yaml")
    head = whole.head_of(folders[-1], facts)
    example = probe_batch(_objective(config, head), config.model)
    with torch.no_grad():
        loss = float(newest.model(*example.inputs, *example.labels))
    contents = Contents(
        newest.step, _facts(facts, newest.step, loss), to_carried_yaml(config), folders[-1] / "tokenizer"
    )
    infos = [names.info(parameter) for parameter in newest.model.parameters()]
    fragments = [Fragment(info, 0, weights[info.name].reshape(-1)) for info in infos]
    with published_folder(out) as temporary:
        (temporary / "state").mkdir()
        if newest.sentence is not None:
            whole.write(temporary, newest.sentence)
        complete(temporary, contents, [write_shard(temporary, SHARD, fragments)])
    return folders


def _objective(config: Config, head: HeadSpec | None) -> Objective:
    """Returns the one whose fixed example a run with this configuration is probed by."""
    if config.task is None:
        return pretraining_objective(config)
    if head is not None:
        return of_head(head)
    return SourceToTarget(config.model.stacks, pad=0, limit=config.model.context, multiple=1)  # answers in text


def mean(values: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape -> fp32 of this shape; added up in fp64."""
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value in values:
        total += value
    return (total / len(values)).float()


def _facts(facts: Mapping[str, Any], step: int, loss: float) -> dict[str, Any]:
    """The manifest of the mean. It names no data, so that no run resumes from it as if it were its own checkpoint."""
    return {
        **{key: facts[key] for key in KEPT if key in facts},
        "step": step,
        "layout": {"tensor": 1, "pipeline": 1, "data": 1, "zero": 0, "pipelined": False},
        "precision": "fp32",
        "hashes": {**facts["hashes"], "data": ""},
        "loss_scaler": {},
        "probe": {"loss": loss, "precision": "fp32"},
    }
