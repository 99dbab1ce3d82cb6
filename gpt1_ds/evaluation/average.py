"""`checkpoint average`: the mean of a run's last checkpoints, as one checkpoint to evaluate or to fine-tune.

It is made of saved weights, at any time after them: training stays as it is, and since checkpoints have no layout, so
has their mean. A moving average inside a step would cost memory on every rank and a part of every checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import manifest, whole
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_carried
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.model import names
from gpt1_ds.objectives.base import Objective
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.objectives.source_target import SourceToTarget
from gpt1_ds.objectives.supervised import of_head

KEPT = ("step", "tokens", "updates", "seed", "head", "task", "hashes")  # of the newest checkpoint's manifest


def average_checkpoints(run: Path, last: int, out: Path) -> list[Path]:
    """Writes the mean of the `last` checkpoints of a run folder as the checkpoint `out`, which has no moments, and
    returns the checkpoints. Raises CheckpointError.
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
    with torch.no_grad():
        for parameter in newest.model.parameters():
            info = names.info(parameter)
            parameter[: info.shape[0]] = mean([reader.whole("master", info) for reader in readers])
    facts = manifest.read(folders[-1])
    config, tokenizer = load_carried(folders[-1] / "config.yaml"), folders[-1] / "tokenizer"
    objective = _objective(config, whole.head_of(folders[-1], facts))
    kept = {key: facts[key] for key in KEPT if key in facts}
    whole.publish(out, newest.model, objective, config, tokenizer, kept, newest.sentence)
    return folders


def _objective(config: Config, head: HeadSpec | None) -> Objective:
    """Returns the one whose fixed example a run with this configuration is probed by."""
    if config.task is None:
        return pretraining_objective(config)
    if head is not None:
        return of_head(head)
    return SourceToTarget(config.model.stacks, pad=0, limit=config.model.context, multiple=1)  # answers in text


def mean(values: Sequence[Tensor]) -> Tensor:
    """Returns tensors of one shape -> fp32 of this shape; added up in fp64."""
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value in values:
        total += value
    return (total / len(values)).float()
