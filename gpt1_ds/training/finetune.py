"""`finetune`: a task, from a pre-trained checkpoint, on the same engine as pre-training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common import log
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import copy_tokenizer
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.finetuning import Finetuning
from gpt1_ds.training.frozen import fit_frozen
from gpt1_ds.training.outcome import Outcome
from gpt1_ds.training.results import write_results
from gpt1_ds.training.run import live
from gpt1_ds.training.vocabulary import task_tokenizer


def finetune(config: Config) -> int:
    """Fine-tune on this rank until the run is done or asked to stop; the process's exit code."""
    return run_finetuning(config).exit_code


def run_finetuning(config: Config) -> Outcome:
    """Fine-tune on this rank; how it ended. Raises UserError and TrainingError."""
    if config.task is not None and config.task.form == "frozen":
        return fit_frozen(config)
    return live(config, open_finetuning, write_results)


def open_finetuning(config: Config, groups: ProcessGroups, alive: Callable[[], None]) -> Finetuning:
    """The workload on the task that the configuration names. Raises DataError and ConfigError."""
    tokenizer = groups.on_rank_0(lambda: keep_tokenizer(config, run_folder(config)))

    def open_here() -> Finetuning:
        assert config.task is not None, "the command checks that there is a task"
        data = read_task(config.task)
        alive()
        workload = Finetuning(config, data, tokenizer, groups)
        if groups.rank == 0:
            for note in data.notes:
                log.say(note)
            _describe(workload)
        return workload

    workload = groups.agree(open_here)
    splits = {f"task.path, {split}": encoded.data_hash for split, encoded in workload.scorer.splits.items()}
    groups.compare({"the tokenizer": workload.tokenizer_hash, **splits})
    return workload


def keep_tokenizer(config: Config, run_dir: RunDir) -> Path:
    """The tokenizer in the run folder; a new run takes it from checkpoint.init_from or task.tokenizer, which it then
    does without.
    """
    kept = run_dir.path / "tokenizer"
    if not kept.is_dir() or not steps_in(run_dir.checkpoints):
        temporary = run_dir.path / ".tokenizer.tmp"
        for left in (temporary, kept):  # by a run that was killed here, or before its first checkpoint
            shutil.rmtree(left, ignore_errors=True)
        copy_tokenizer(task_tokenizer(config), temporary)
        temporary.rename(kept)
    return kept


def _describe(workload: Finetuning) -> None:
    train = workload.train
    shares = ", ".join(f"{len(encoded)} {split}" for split, encoded in workload.scorer.splits.items())
    cut = f"; {train.truncated} are longer than {train.limit} tokens and cut" if train.truncated else ""
    log.say(
        f"{workload.task.name}: {shares} examples, {train.lengths.mean():.1f} tokens a sequence{cut}; "
        f"{workload.batches.per_epoch} batches an epoch, {workload.batches.padding_share():.0%} of them padding"
    )
    log.say(f"{workload.task.name}: loss = {workload.scorer.settings.loss_in_words}")
