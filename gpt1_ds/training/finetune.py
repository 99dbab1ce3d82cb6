"""`finetune`: a task, from a pre-trained checkpoint, on the same engine as pre-training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpt1_ds.checkpoint.folders import find, steps_in
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.parallel.grid import Grid
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.training.lifecycle import live
from gpt1_ds.training.session import run_folder
from gpt1_ds.training.task_objective import TaskObjective


def finetune(config: Config) -> int:
    """Fine-tune on this rank until the run is done or asked to stop; the process's exit code."""
    return live(config, open_task)


def open_task(config: Config, grid: Grid, alive: Callable[[], None]) -> TaskObjective:
    """The objective on the task that the configuration names. Raises DataError and ConfigError."""

    def open_here() -> TaskObjective:
        assert config.task is not None, "the verb checks that there is a task"
        data = read_task(config.task)
        alive()
        objective = TaskObjective(config, data, tokenizer_folder(config), grid)
        if grid.rank == 0:
            for note in data.notes:
                log.say(note)
            _describe(objective)
        return objective

    return grid.agree(open_here)


def tokenizer_folder(config: Config) -> Path:
    """The tokenizer that a run with checkpoints has kept, else that of checkpoint.init_from, else task.tokenizer."""
    run_dir = run_folder(config)
    if run_dir.tokenizer.is_dir() and steps_in(run_dir.checkpoints):
        return run_dir.tokenizer
    if config.checkpoint.init_from is not None:
        return find(Path(config.checkpoint.init_from)) / "tokenizer"
    assert config.task is not None, "fine-tuning has a task"
    if config.task.tokenizer is None:
        raise ConfigError(
            "checkpoint.init_from is empty; name a pre-trained checkpoint, or task.tokenizer to start from nothing"
        )
    return Path(config.task.tokenizer)


def _describe(objective: TaskObjective) -> None:
    train = objective.splits["train"]
    shares = ", ".join(f"{len(encoded)} {split}" for split, encoded in objective.splits.items())
    cut = f"; {train.truncated} are longer than {train.limit} tokens and cut" if train.truncated else ""
    log.say(
        f"{objective.task.name}: {shares} examples, {train.lengths.mean():.1f} tokens a sequence{cut}; "
        f"{objective.batches.per_epoch} batches an epoch, {objective.batches.padding_share():.0%} of them padding"
    )
