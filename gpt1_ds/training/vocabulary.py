"""The tokenizer of a run, and the configuration with its vocabulary, as the run saves it. Never imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpt1_ds.checkpoint.folders import find, steps_in
from gpt1_ds.common.errors import DataError
from gpt1_ds.config import Config, load_carried, load_recorded, with_vocabulary
from gpt1_ds.config.load import is_published
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.sources import EMBEDDED_VOCAB_SIZE, lacks_embedded_corpus, with_embedded_corpus
from gpt1_ds.data.staging import staged
from gpt1_ds.data.tokenizers.base import read_metadata
from gpt1_ds.training.claim import begins_anew, run_folder


def task_tokenizer(config: Config) -> Path:
    """The tokenizer of fine-tuning: the run's own where it continues, else that of checkpoint.init_from or
    task.tokenizer. Raises CheckpointError where the checkpoint is gone and the run has none.
    """
    assert config.task is not None, "fine-tuning has a task"
    run_dir = run_folder(config)
    own = run_dir.path / "tokenizer"
    if own.is_dir() and steps_in(run_dir.checkpoints) and not begins_anew(config):
        return own
    if config.checkpoint.init_from is None:
        assert config.task.tokenizer is not None, "finetune_config checks that one of the two is there"
        return Path(config.task.tokenizer)
    return find(Path(config.checkpoint.init_from)) / "tokenizer"


def trained_config(
    config: Config, files: Sequence[str], overrides: Sequence[str], source: Path | None = None
) -> Config:
    """The `config` of a run that was read of `files` and `overrides`. Where a shipped preset alone names its vocabulary
    size, that of the published model, it has another one: the size that its checkpoints have, that of the model in the
    configuration `source`, or its tokenizer's. While the data of pre-training are not there, the preset's stays.
    """
    if not is_published(files, overrides, "model", "vocab_size"):
        return config
    found = _recorded_size(config) or (load_carried(source).model.vocab_size if source is not None else None)
    if config.task is not None:
        return replace(config, model=replace(config.model, vocab_size=found))
    if found is None and lacks_embedded_corpus(config):
        found = EMBEDDED_VOCAB_SIZE
    if found is None:
        with contextlib.suppress(DataError):
            found = Dataset(with_embedded_corpus(config, make=False).data.path[0].path).vocab_size
    return config if found is None else replace(config, model=replace(config.model, vocab_size=found))


def _recorded_size(config: Config) -> int | None:
    """The vocabulary size of a run that continues."""
    run_dir = run_folder(config)
    if begins_anew(config) or not run_dir.config.is_file() or not steps_in(run_dir.checkpoints):
        return None
    return load_recorded(run_dir.config).model.vocab_size


def resolved(config: Config) -> Config:
    """`config` with the vocabulary size that its model has: the tokenizer's unless one is named. Raises DataError or
    CheckpointError where there is no tokenizer.
    """
    if config.task is not None:
        ids = read_metadata(task_tokenizer(config)).vocab_size  # control symbols may have been added to the model's
        return replace(config, model=replace(config.model, vocab_size=max(config.model.vocab_size or 0, ids)))
    if config.model.vocab_size is not None:
        return config
    return with_vocabulary(config, Dataset(staged(config.data.path[0].path)).vocab_size)
