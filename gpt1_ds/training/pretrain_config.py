"""The configuration of a pre-training run, checked before any rank starts. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config, load
from gpt1_ds.training.beginning import model_of
from gpt1_ds.training.vocabulary import trained_config


def pretrain_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """The configuration of a pre-training run; its model is that of the checkpoint which it begins with, if any, but
    for keys that `files` or `overrides` name.

    Raises ConfigError, also for one that names a task, and CheckpointError when there is no such checkpoint.
    """
    source = model_of(files, overrides)
    config = load(files, overrides, source)
    if config.task is not None:
        raise ConfigError("task: pre-training has none; leave the section out, or use the command finetune")
    return trained_config(config, files, overrides, source)
