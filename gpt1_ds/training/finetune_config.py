"""The configuration of a fine-tuning run and its task, checked before any rank starts. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpt1_ds.checkpoint.folders import find
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.config import Config, load, load_carried
from gpt1_ds.config.load import default_name, named
from gpt1_ds.config.task import SENTENCES
from gpt1_ds.config.validate import transfer_problems
from gpt1_ds.tasks.batches import batches_per_epoch
from gpt1_ds.tasks.encoding import length_limit
from gpt1_ds.tasks.reading import TaskData, read_task


def finetune_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """The configuration of a fine-tuning run; its model is that of checkpoint.init_from.

    Raises ConfigError, and CheckpointError when there is no such checkpoint.
    """
    source = _model_of(files, overrides)
    config = load(files, overrides, source)
    if config.model.kind == "encoder_decoder" or config.model.mask == "prefix":
        key = "kind" if config.model.kind == "encoder_decoder" else "mask"
        raise ConfigError(
            f"model.{key}={getattr(config.model, key)}: fine-tuning reads one token of a causal or bidirectional "
            "model; start from one of those"
        )
    if config.task is not None and (config.model.mask == "bidirectional" or config.task.kind == SENTENCES):
        config = _without_language_model(config, named(files, overrides, "task", "lm_coefficient"))
    if config.task is None:
        raise ConfigError("task: fine-tuning needs one; add -c finetune/cola, for example, or a file with this section")
    if config.checkpoint.init_from is None and config.task.tokenizer is None:
        raise ConfigError(
            "checkpoint.init_from is empty; name the checkpoint to start from, or task.tokenizer to start from nothing"
        )
    if config.checkpoint.init_from is not None and config.task.tokenizer is not None:
        raise ConfigError("task.tokenizer: the checkpoint of checkpoint.init_from has its own; keep one of the two")
    if config.train.tokens is not None:
        raise ConfigError(f"train.tokens={config.train.tokens} is for pre-training; give train.epochs or train.steps")
    if source is not None:
        ConfigError.raise_all(transfer_problems(config, load_carried(source).model))
    return config


def _without_language_model(config: Config, coefficient: str | None) -> Config:
    """A model that sees both sides has no next token to predict; the loss of sentence vectors is alone."""
    assert config.task is not None, "fine-tuning has a task"
    if coefficient is not None and config.task.lm_coefficient > 0:
        if config.task.kind == SENTENCES:
            raise ConfigError(f"task.lm_coefficient={coefficient}: task.kind=sentences has its own loss only; use 0")
        raise ConfigError(
            f"task.lm_coefficient={coefficient}: model.mask=bidirectional has no next token to predict; use 0"
        )
    return replace(config, task=replace(config.task, lm_coefficient=0.0))


def check_task(config: Config) -> TaskData:
    """The task's examples. Raises DataError or ConfigError, once for all ranks."""
    assert config.task is not None, "finetune_config checks it"
    length_limit(config.task, config.model.context)
    data = read_task(config.task)
    batches_per_epoch(len(data.splits["train"]), config.train.global_batch)
    return data


def _model_of(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """The configuration that says what the model is: the checkpoint's, or the run's own when that is gone."""
    source = named(files, overrides, "checkpoint", "init_from")
    if source is None:
        return None
    try:
        return find(Path(source)) / "config.yaml"
    except CheckpointError:
        folder = Path(named(files, overrides, "run", "dir") or "runs")
        own = folder / (named(files, overrides, "run", "name") or default_name(files)) / "config.yaml"
        if own.is_file():
            return own
        raise
