"""The configuration of a pre-training run, checked before any rank starts. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config, load


def pretrain_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """Raises ConfigError, also for one that names a task."""
    config = load(files, overrides)
    if config.task is not None:
        raise ConfigError("task: pre-training has none; leave the section out, or use the command finetune")
    return config
