"""What a fine-tuning run leaves: the best checkpoint's scores on every split, and its predictions."""

from __future__ import annotations

from gpt1_ds.checkpoint.restore import restore
from gpt1_ds.common import log
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.base import Engine
from gpt1_ds.tasks.submission import write_submission
from gpt1_ds.tracking.entries import write_scores
from gpt1_ds.training.finetuning import DEV, Finetuning
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Workload

FOLDER = "predictions"


def write_results(workload: Workload, engine: Engine, state: TrainingState, run_dir: RunDir) -> None:
    """Score the best checkpoint into eval.json, and write predictions/ as files that GLUE takes. All ranks call this;
    the engine then holds the best checkpoint's weights.
    """
    assert isinstance(workload, Finetuning), "fine-tuning has a task"
    scorer, groups = workload.scorer, engine.groups
    step = state.step if state.best is None else state.best.step
    folder = run_dir.checkpoint(step)
    if step != state.step:
        if not groups.on_rank_0(folder.is_dir):
            raise TrainingError(f"{folder}: the best checkpoint is gone; put it back and run again to score it")
        restore(engine, workload.config, folder, weights_only=True)
    for split in sorted(scorer.splits.keys() - {"train"}):
        if scorer.has_labels(split):
            record, predictions = scorer.measure(engine, split, step, state.tokens)
            if groups.rank == 0:
                write_scores(record, run_dir.evaluation)
                if split != DEV:  # whose score was said when the run came to this step
                    log.say(f"step {record.step}: {record}")
        elif scorer.settings.answer == "labelled":
            continue
        else:
            predictions, _ = scorer.predict(engine, split)
        groups.on_rank_0(
            lambda split=split, found=predictions: write_submission(  # type: ignore[misc]
                scorer.task_of(split), scorer.splits[split].ids, found, run_dir.path / FOLDER, split
            )
        )
    if groups.rank == 0:
        log.say(f"{run_dir.path}: best is {folder.name}; predictions are in {run_dir.path / FOLDER}")
