"""The configuration of a training run and its task, checked before any rank starts, and with the vocabulary of its
tokenizer, as the run saves it. Never imports torch, and what tasks are only where there is one: all commands that train
start here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.checkpoint.folders import find_checkpoint, steps_in
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError
from gpt1_ds.config import Config, ModelConfig, TaskConfig, load, load_carried, load_recorded, with_vocabulary
from gpt1_ds.config.layers import is_published, named
from gpt1_ds.config.load import check_written
from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.config.validate import transfer_problems
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.sources import EMBEDDED_VOCAB_SIZE, lacks_embedded_corpus, with_embedded_corpus
from gpt1_ds.data.staging import staged
from gpt1_ds.data.tokenizers.base import read_metadata
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.training.claim import begins_anew, run_folder
from gpt1_ds.training.resume import model_of

if TYPE_CHECKING:
    from gpt1_ds.tasks.base import Task
    from gpt1_ds.tasks.reading import TaskData


def task_tokenizer(config: Config) -> Path:
    """Returns the tokenizer of fine-tuning: the run's own where it continues, or its newest checkpoint's where the
    folder came without it; else that of checkpoint.init_from or task.tokenizer. Raises CheckpointError where that is
    gone, unless a run with a mirror has a tokenizer in its folder.
    """
    assert config.task is not None, "fine-tuning has a task"
    run_dir = run_folder(config)
    if (own := steps_in(run_dir.checkpoints)) and not begins_anew(config):
        for kept in (run_dir.path / "tokenizer", own[-1] / "tokenizer"):
            if kept.is_dir():
                return kept
    if config.checkpoint.init_from is None:
        assert config.task.tokenizer is not None, "finetune_config checks that one of the two is there"
        return Path(config.task.tokenizer)
    try:
        return find_checkpoint(Path(config.checkpoint.init_from)) / "tokenizer"
    except CheckpointError:  # gone, which a run that its mirror gives its checkpoints back does not need
        kept = run_dir.path / "tokenizer"
        if config.checkpoint.mirror is None or begins_anew(config) or not kept.is_dir():
            raise
        return kept


def trained_config(
    config: Config, files: Sequence[str], overrides: Sequence[str], source: Path | None = None
) -> Config:
    """Returns the `config` of a run that was read of `files` and `overrides`. Where a shipped preset alone names its
    vocabulary size, that of the published model, it has another one: the size that its checkpoints have, that of the
    model in the configuration `source`, or its tokenizer's. While the data of pre-training are not there, the preset's
    stays.
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
    """Returns the vocabulary size of a run that continues."""
    run_dir = run_folder(config)
    if begins_anew(config) or not run_dir.config.is_file() or not steps_in(run_dir.checkpoints):
        return None
    return load_recorded(run_dir.config).model.vocab_size


def resolved(config: Config) -> Config:
    """Returns `config` with the vocabulary size that its model has: the tokenizer's unless one is named. Raises
    DataError or CheckpointError where there is no tokenizer.
    """
    if config.task is not None:
        ids = read_metadata(task_tokenizer(config)).vocab_size  # control symbols may have been added to the model's
        return replace(config, model=replace(config.model, vocab_size=max(config.model.vocab_size or 0, ids)))
    if config.model.vocab_size is not None:
        return config
    return with_vocabulary(config, Dataset(staged(config.data.path[0].path)).vocab_size)


_NO_TASK = "task: fine-tuning needs one; add -c finetune/cola, for example, or a file with this section"
EPOCHS = 3  # of fine-tuning, "sufficient for most cases" (section 4.1 of the paper)


def pretrain_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """Returns the configuration of a pre-training run; its model is that of the checkpoint which it begins with, if
    any, but for keys that `files` or `overrides` name.

    Raises ConfigError, also for one that names a task, and CheckpointError when there is no such checkpoint.
    """
    source = _model_of(files, overrides)
    config = load(files, overrides, source)
    if config.task is not None:
        raise ConfigError("task: pre-training has none; leave the section out, or use the command finetune")
    return trained_config(config, files, overrides, source)


def _model_of(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """Returns `model_of`; where that checkpoint is missing, what is wrong in the arguments themselves is said with
    it.
    """
    try:
        return model_of(files, overrides)
    except CheckpointError as missing:
        try:
            check_written(files, overrides)
        except ConfigError as wrong:
            raise CheckpointError(*missing.problems, *wrong.problems) from None
        raise


def finetune_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """Returns the configuration of a fine-tuning run; its model is that of checkpoint.init_from.

    Raises ConfigError, and CheckpointError when there is no such checkpoint.
    """
    source = _model_of(files, overrides)
    config = trained_config(load(files, overrides, source), files, overrides, source)
    if config.task is None:
        raise ConfigError(_NO_TASK)
    config = _with_form(config, named(files, overrides, "task", "form"))
    assert config.task is not None, "it was there before"
    ConfigError.raise_all(_form_problems(config.model, config.task))
    if config.checkpoint.init_from is None and config.task.tokenizer is None:
        raise ConfigError(
            "checkpoint.init_from is empty; name the checkpoint to start from, or task.tokenizer to start from nothing"
        )
    if config.checkpoint.init_from is not None and config.task.tokenizer is not None:
        raise ConfigError("task.tokenizer: the checkpoint of checkpoint.init_from has its own; keep one of the two")
    if config.task.form == "frozen" and config.checkpoint.init_from is None:
        raise ConfigError("task.form=frozen: checkpoint.init_from is empty; name the checkpoint whose states are read")
    if config.train.tokens is not None:
        raise ConfigError(f"train.tokens={config.train.tokens} is for pre-training; give train.epochs or train.steps")
    if source is not None:
        ConfigError.raise_all(transfer_problems(config, load_carried(source).model))
    if config.model.mask == "bidirectional" or config.task.makes_vectors or config.task.form == "text":
        return _without_language_model(config, named(files, overrides, "task", "lm_coefficient"))
    return config


def shown_finetune_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """Returns the configuration of a fine-tuning run, to be read by a person: it asks for no checkpoint. While there is
    none, the section model is what the files and arguments say of it, and a line says so.
    """
    missing = "checkpoint.init_from is empty"
    if named(files, overrides, "checkpoint", "init_from") or named(files, overrides, "task", "tokenizer"):
        try:
            model_of(files, overrides)
            return finetune_config(files, overrides)
        except CheckpointError as error:
            missing = error.problems[0]
    config = load(files, overrides)
    if config.task is None:
        raise ConfigError(_NO_TASK)
    log.say(f"{missing}; the section model is shown without its checkpoint's")
    return config


def _with_form(config: Config, form: str | None) -> Config:
    """A text is written by a language model: no other form answers such a task."""
    assert config.task is not None, "fine-tuning has a task"
    if config.task.form == "text" or not _kind_of(config.task).writes_text:
        return config
    if form is not None:
        raise ConfigError(f"task.form={form} writes no text, which task.kind=generation asks for; use task.form=text")
    return replace(config, task=replace(config.task, form="text"))


def _kind_of(task: TaskConfig) -> type[Task]:
    """Returns the kind of task; of sentence vectors that of the rows they are trained on."""
    from gpt1_ds.tasks.registry import find_spec

    return find_spec(task).task


def _form_problems(model: ModelConfig, task: TaskConfig) -> Iterator[str]:
    """Yields what a model can answer with: a head reads one token, text needs a model that writes."""
    from gpt1_ds.tasks.registry import SPECS, find_spec

    if task.form != "text" and (model.kind == "encoder_decoder" or model.mask == "prefix"):
        key = "kind" if model.kind == "encoder_decoder" else "mask"
        way_out = "start from one of those" if task.makes_vectors else "use task.form=text"
        yield (
            f"task.form={task.form} reads states of a causal or bidirectional model, not of "
            f"model.{key}={getattr(model, key)}; {way_out}"
        )
    if task.form != "head" and task.name in SPECS and (kind := find_spec(task).task).reads_tokens:
        yield f"task.form={task.form} answers a whole text, task.kind={kind.kind} its tokens; use task.form=head"
    if task.form == "text" and model.mask == "bidirectional":
        yield "task.form=text: model.mask=bidirectional writes no text; use task.form=head"


def _without_language_model(config: Config, coefficient: str | None) -> Config:
    """Returns a model that sees both sides has no next token to predict; vectors and answers in text have one loss."""
    assert config.task is not None, "fine-tuning has a task"
    if coefficient is not None and config.task.lm_coefficient > 0:
        why = "model.mask=bidirectional has no next token to predict"
        if config.task.form == "text":
            why = "task.form=text has one loss, of the answer"
        if config.task.makes_vectors:
            why = "task.kind=sentences has its own loss only"
        raise ConfigError(f"task.lm_coefficient={coefficient}: {why}; use 0")
    return replace(config, task=replace(config.task, lm_coefficient=0.0))


def check_task(config: Config) -> TaskData:
    """Returns the task's examples. Raises DataError or ConfigError, once for all ranks."""
    from gpt1_ds.tasks.batches import batches_per_epoch
    from gpt1_ds.tasks.encoding import fitted, length_limit
    from gpt1_ds.tasks.metrics import check_libraries
    from gpt1_ds.tasks.mixture import epoch_examples
    from gpt1_ds.tasks.reading import read_task
    from gpt1_ds.tasks.text import text_limits

    assert config.task is not None, "finetune_config checks it"
    limit = length_limit(config.task, config.model.context)
    data = read_task(config.task)
    check_libraries(data.task)
    task, smoothing = fitted(data.task, config.task, config.model), config.task.label_smoothing
    if config.task.form == "text":
        text_limits(task, config.task, load_tokenizer(task_tokenizer(config)), limit, config.model.stacks)
    head = task.head(config.task, config.model)
    if smoothing and (head.is_value or head.kind == "span"):
        what = "a score" if head.is_value else "a span"
        raise ConfigError(
            f"task.label_smoothing={smoothing} smooths classes, the head of this task gives {what}; use 0"
        )
    if config.task.form != "frozen" and not data.task.reads_tokens:  # whose rows are more than its examples
        groups = [example.group for example in data.splits["train"]]
        batches_per_epoch(epoch_examples(config.task, groups), config.train.global_batch)
    return data


def finetuning_steps(train: TrainConfig, per_epoch: int) -> int:
    """Updates of a fine-tuning run; each epoch's last partial batch is dropped."""
    if train.steps is not None:
        return train.steps
    return max(1, round((EPOCHS if train.epochs is None else train.epochs) * per_epoch))
