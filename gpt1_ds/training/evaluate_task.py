"""`evaluate` of a fine-tuned checkpoint: its task's scores on every split with labels but train, on any layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.checkpoint.whole import head_of
from gpt1_ds.common import log, progress
from gpt1_ds.common.errors import CheckpointError, DataError
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import Grid
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.training import wandb_summary
from gpt1_ds.training.build import build_engine
from gpt1_ds.training.finetuning import Finetuning
from gpt1_ds.training.inference import task_of
from gpt1_ds.training.results import write_scores
from gpt1_ds.training.session import joined, run_folder


def evaluate_task(config: Config, checkpoints: Sequence[Path], out: Path | None) -> int:
    """Score `checkpoints`, all of one run, on this rank's share; rank 0 prints the results and merges them into `out`
    (eval.json), one by one.
    """
    with joined(config) as grid:
        workload = grid.agree(lambda: _open(config, checkpoints[0], grid))
        config = workload.config
        assert config.model.vocab_size is not None, "a workload fills it in"
        engine = build_engine(config, config.model.vocab_size, grid, initialise=False, objective=workload.objective)
        store = Store(run_folder(config), engine, config)
        for checkpoint in checkpoints:
            store.verify(checkpoint)
            _score(workload, engine, checkpoint, store.load(checkpoint, weights_only=True), out)
        if grid.rank == 0:
            wandb_summary.show(config, out)
    return 0


def _score(workload: Finetuning, engine: Engine, checkpoint: Path, facts: dict[str, Any], out: Path | None) -> None:
    """Every labelled split under the engine's weights, which are those of `checkpoint`."""
    for split in workload.splits:
        if split == "train" or not workload.has_labels(split):
            continue
        with progress.bar(watched=workload.grid.rank == 0) as show:
            show(words=split)
            record, _ = workload.measure(engine, split, int(facts["step"]), int(facts["tokens"]))
        if workload.grid.rank == 0:
            log.say(f"{checkpoint}: {record}")
            if out is not None:
                write_scores(record, out)


def _open(config: Config, checkpoint: Path, grid: Grid) -> Finetuning:
    """The task's examples for the model in `checkpoint`. Raises CheckpointError when it has no head for them."""
    assert config.task is not None, "the verb asks only then"
    facts = manifest.read(checkpoint)
    task, head = task_of(checkpoint, facts), head_of(checkpoint, facts)
    if task is None or head is None:
        raise CheckpointError(f"{checkpoint}: was not fine-tuned on a task; leave the section task out")
    data = read_task(config.task)
    _check(task, data, checkpoint)
    manifest.check_size(checkpoint, facts, config.model, head)
    return Finetuning(config, data, checkpoint / "tokenizer", grid)


def _check(task: Task, data: TaskData, checkpoint: Path) -> None:
    here = data.task
    if (here.kind, here.layout, here.labels) != (task.kind, task.layout, task.labels):
        raise DataError(
            f"{checkpoint}: was fine-tuned on {task.name}, {task.kind} of {', '.join(task.labels) or 'scores'}; "
            f"{here.name} is {here.kind} of {', '.join(here.labels) or 'scores'}"
        )
