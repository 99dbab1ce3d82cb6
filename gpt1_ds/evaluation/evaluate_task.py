"""`evaluate` of a fine-tuned checkpoint: its task's scores on every split with labels but train, on any layout, and
beside them those of controls that were never pre-trained (tasks/controls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.restore import restore, same_manifest, verify_checkpoint
from gpt1_ds.checkpoint.verify import check_memory
from gpt1_ds.checkpoint.whole import head_of
from gpt1_ds.common import log, progress
from gpt1_ds.common.errors import CheckpointError, DataError
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import build_engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session, with_common_micro_batch
from gpt1_ds.evaluation.load import task_of
from gpt1_ds.evaluation.task_scores import TaskScorer
from gpt1_ds.evaluation.text_scores import make_scorer
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.metrics import control_scores
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tasks.registry import class_names
from gpt1_ds.tracking.entries import CONTROL, entry_key, merge, read_entries, write_scores
from gpt1_ds.tracking.wandb import show_evaluation


def evaluate_task(config: Config, checkpoints: Sequence[Path], out: Path | None, missing: bool = False) -> int:
    """Score `checkpoints`, all of one run, on this rank's share; rank 0 prints the results and merges them into `out`
    (eval.json), one by one, and then those of the controls, fitted on the same training examples. `missing` leaves out
    what `out` has already of a checkpoint.
    """
    arguments = {"checkpoints": checkpoints, "missing": missing}
    with distributed_session(config, command="evaluate", **arguments) as groups:
        config = with_common_micro_batch(config, groups)
        data, scorer = groups.agree(lambda: _open(config, checkpoints[0], groups))
        groups.compare({f"task.path, {split}": encoded.data_hash for split, encoded in scorer.splits.items()})
        config, there = scorer.config, groups.on_rank_0(lambda: read_entries(out))
        done = {entry_key(entry) for entry in there} if missing else set()
        engine = build_engine(config, groups, initialise=False, objective=scorer.objective)
        labelled = [split for split in scorer.splits if split != "train" and scorer.has_labels(split)]
        steps = [same_manifest(groups, checkpoint)["step"] for checkpoint in checkpoints]
        for checkpoint, step in zip(checkpoints, steps, strict=True):
            left = [split for split in labelled if (scorer.task_of(split).name, split, step) not in done]
            if left:
                verify_checkpoint(engine, checkpoint)
                facts = restore(engine, config, checkpoint, weights_only=True)
                _score(scorer, left, engine, checkpoint, facts, out)
        if groups.rank == 0:
            _control(data, out)
            show_evaluation(config, out)
    return 0


def _score(
    scorer: TaskScorer, splits: Sequence[str], engine: Engine, checkpoint: Path, facts: dict[str, Any], out: Path | None
) -> None:
    """`splits` under the engine's weights, which are those of `checkpoint`."""
    for split in splits:
        with progress.bar(watched=scorer.groups.rank == 0) as show:
            show(words=split)
            record, _ = scorer.measure(engine, split, int(facts["step"]), int(facts["tokens"]))
        if scorer.groups.rank == 0:
            log.say(f"{checkpoint}: {record}")
            if out is not None:
                write_scores(record, out)


def _control(data: TaskData, out: Path | None) -> None:
    """Print the scores of the controls and merge them into `out`; a machine that lacks what they need goes without."""
    try:
        with progress.bar() as show:
            show(words="controls")
            scores = control_scores(data.task, data.task.controls(data.splits))
            for (name, split), found in groupby(scores, lambda one: (one.control, one.split)):
                metrics = {one.metric: one.value for one in found}
                entry = {"task": f"{CONTROL}{name}/{data.task.name}", "split": split, "step": 0, "metrics": metrics}
                shown = (f"{key} {'not defined' if x is None else f'{x:.4f}'}" for key, x in metrics.items())
                log.say(f"{entry['task']} {split}: {', '.join(shown)}")
                if out is not None:
                    merge(out, entry)
    except (DataError, ValueError) as error:
        log.say(f"{data.task.name}: no further controls: {error}")


def _open(config: Config, checkpoint: Path, groups: ProcessGroups) -> tuple[TaskData, TaskScorer]:
    """The task's examples for the model in `checkpoint`. Raises CheckpointError when it has no head for them."""
    assert config.task is not None, "the command asks only then"
    facts = manifest.read(checkpoint)
    task, head = task_of(checkpoint, facts), head_of(checkpoint, facts)
    if task is None or (head is None and not task.in_text):
        raise CheckpointError(f"{checkpoint}: was not fine-tuned on a task; leave the section task out")
    data = read_task(config.task)
    check_memory(checkpoint, facts, config.model, head)
    scorer = make_scorer(config, data, checkpoint / "tokenizer", groups)
    _check(task, scorer.task, checkpoint)
    return data, scorer


def _check(task: Task, here: Task, checkpoint: Path) -> None:
    if here.in_text != task.in_text:
        form = "text" if task.in_text else "head"
        raise DataError(f"{checkpoint}: was fine-tuned with task.form={form}; leave task.form out")
    if (here.kind, here.layout, here.labels) != (task.kind, task.layout, task.labels) or here.loss != task.loss:
        raise DataError(
            f"{checkpoint}: was fine-tuned on {task.name}, {task.kind} of {', '.join(class_names(task)) or 'scores'}; "
            f"{here.name} is {here.kind} of {', '.join(class_names(here)) or 'scores'}"
        )
