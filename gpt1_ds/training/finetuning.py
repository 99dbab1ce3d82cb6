"""`finetune`: a task, from a pre-trained checkpoint, on the same engine as pre-training. Its dev split is scored after
every epoch; the best checkpoint's scores on every split and its predictions are what such a run leaves.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.restore import has_pooler, transfer
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.data.tokenizers.base import copy_tokenizer
from gpt1_ds.data.tokenizers.registry import encode_alike
from gpt1_ds.data.windows import fingerprint
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.text_scores import make_scorer
from gpt1_ds.tasks.batches import TrainBatches
from gpt1_ds.tasks.metrics import FOLDER, write_submission
from gpt1_ds.tasks.mixture import task_draws
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tracking.record import Entry, TaskRecord, merge, score_entry
from gpt1_ds.training.batches import StepBatch
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.configuration import finetuning_steps, task_tokenizer
from gpt1_ds.training.frozen import fit_frozen
from gpt1_ds.training.run import live
from gpt1_ds.training.state import Outcome, TrainingState
from gpt1_ds.training.workload import Record, Workload

DEV = "dev"
UNDEFINED = -2.0  # JSON has no infinity


class Finetuning(Workload):
    """`data` read from the task's files, encoded with the tokenizer in `tokenizer_folder`."""

    def __init__(self, config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> None:
        self.scorer = make_scorer(config, data, tokenizer_folder, groups)
        self.config, self.task, self.groups = self.scorer.config, self.scorer.task, groups
        self.tokenizer, self.tokenizer_folder = self.scorer.tokenizer, tokenizer_folder
        self.tokenizer_hash = self.tokenizer.fingerprint
        self.data_hash = "+".join(self.scorer.splits[split].data_hash for split in ("train", DEV))
        self.train = self.scorer.splits["train"]
        config = self.config
        parts = task_draws(self.scorer.settings, self.train.groups)
        self.batches = TrainBatches(self.train, config.train.global_batch, config.run.seed, self.scorer.multiple, parts)
        self.steps = finetuning_steps(config.train, self.batches.per_epoch)
        self.batch_sizes = BatchSizes.constant(config.train.global_batch)
        self.objective = self.scorer.objective
        self.flops_per_token = self.scorer.flops_per_token()

    def batch(self, number: int, step: int) -> StepBatch:
        batch = self.batches.at(number - 1)
        counted = self.groups.tensor_rank == 0 and self.groups.is_first_stage
        mark = sum(
            fingerprint(batch.tokens[rows].reshape(len(rows), -1), rows.astype(np.int64))
            for rows in self.scorer.shape.rows()
        )
        here = self.scorer.micro_batches(batch, (self.config.run.seed, step))
        tokens = self.scorer.fed(batch)
        return StepBatch(here, (mark + 2**63) % 2**64 - 2**63 if counted else 0, tokens)

    def sources(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.batches.at(number - 1).examples
        return [{"row": int(row), "example": self.train.ids[int(examples[row])]} for row in rows]

    def is_evaluation_due(self, step: int) -> bool:
        return step == self.steps or step % self.batches.per_epoch == 0

    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        return [self.scorer.measure(engine, DEV, step, tokens, whole=False)[0]]

    def score(self, records: Sequence[Record]) -> float | None:
        """Returns the task's first metric; one that is not defined is worse than any other, all of which are -1 or
        more.
        """
        record = records[0]
        assert isinstance(record, TaskRecord), "as `evaluate` gives it"
        value = record.metrics[self.task.metrics[0]]
        return UNDEFINED if value is None else value

    @property
    def answered(self) -> list[str]:
        """Returns the splits that the results are of."""
        everything = self.scorer.settings.answer != "labelled"
        splits = sorted(self.scorer.splits.keys() - {"train"})
        return [split for split in splits if everything or self.scorer.has_labels(split)]

    def results_take(self, seconds: float) -> float:
        """An evaluation is of dev, or of the part of it for which answers are written."""
        examples = {split: len(self.scorer.splits[split].example_ids) for split in self.answered}
        dev = examples[DEV]
        measured = min(dev, self.scorer.settings.decoded_examples or dev) if self.task.writes_text else dev
        return seconds * sum(examples.values()) / measured

    def learned(self, engine: Engine, batch: StepBatch) -> dict[str, Any]:
        """Returns the parts of the loss of this step, and how many of its examples were right, with dropout."""
        head, groups = self.scorer.objective.head, self.groups
        if self.task.is_text_to_text or head.loss is not None:
            return {}
        here = torch.zeros(3, dtype=torch.float64, device=engine.device)
        if groups.is_last_stage and groups.tensor_rank == 0:
            for scores, one in zip(engine.loss.scores, batch.micro_batches, strict=True):
                parts = engine.loss.parts(scores, one.labels)
                assert parts is not None, "a task's head has a loss of its own"
                here[:2] += parts
            here[2] = torch.stack(engine.micro_losses).sum()
        if groups.world > 1:
            dist.all_reduce(here)
        task, right, whole = (here / (len(batch.micro_batches) * groups.layout.data)).tolist()
        found = {"task_loss": task}
        if head.lm_coefficient:
            found["language_loss"] = (whole - task) / head.lm_coefficient
        return found if math.isnan(right) else found | {"accuracy": right}

    def transfer(self, engine: Engine, folder: Path, load: Callable[[Path], None]) -> None:
        facts = manifest.read(folder)
        other = facts["hashes"]["tokenizer"] != self.tokenizer_hash
        if other and not encode_alike(folder / "tokenizer", self.tokenizer_folder):
            raise CheckpointError(f"{folder}: was trained with another tokenizer than {self.tokenizer_folder}")
        fresh: tuple[int, ...] = ()
        new_symbols = self.task.symbols == "extract" and not self.task.is_text_to_text
        if new_symbols and "task" not in facts:  # pre-training has not met GPT-1's three symbols
            fresh = (self.tokenizer.start_id, self.tokenizer.delimiter_id, self.tokenizer.extract_id)
        layers, seed = self.scorer.settings.transfer_layers, self.config.run.seed
        positions = self.config.checkpoint.positions
        self.groups.agree(lambda: transfer(engine, folder, layers, fresh, positions, seed))
        master_weights.publish(engine)  # ranks meet: not where one of them may fail alone
        is_pooled = self.scorer.objective.head.kind == "pooled"
        if self.groups.rank == 0 and is_pooled and layers is None and not has_pooler(StateReader(folder)):
            log.say(f"{folder}: has no pooler: that of the task's head is drawn anew")

    def facts(self) -> dict[str, Any]:
        head = self.scorer.objective.head
        return {"task": self.task.values(), **({} if self.task.is_text_to_text else {"head": asdict(head)})}


def write_results(workload: Workload, engine: Engine, state: TrainingState, run_dir: RunDir) -> None:
    """Scores the best checkpoint, whose weights the engine holds, into eval.json, and writes predictions/ as files that
    GLUE takes. All ranks call this.
    """
    assert isinstance(workload, Finetuning), "fine-tuning has a task"
    scorer, groups = workload.scorer, engine.groups
    step = state.step if state.best is None else state.best.step
    folder = run_dir.checkpoint(step)
    entries: list[Entry] = []
    for split in workload.answered:
        if scorer.has_labels(split):
            record, predictions = scorer.measure(engine, split, step, state.tokens)
            entries.append(score_entry(record, scorer.hashes[split]))
            if groups.rank == 0 and split != DEV:  # whose score was said when the run came to this step
                log.say(f"step {record.step}: {record}")
        else:
            predictions, _ = scorer.predict(engine, split)
        groups.on_rank_0(
            lambda split=split, found=predictions: write_submission(  # type: ignore[misc]
                scorer.task_of(split), scorer.splits[split].example_ids, found, run_dir.path / FOLDER, split
            )
        )
    if groups.rank == 0:
        merge(run_dir.evaluation, *entries, first=True)
        log.say(f"{run_dir.path}: best is {folder.name}; predictions are in {run_dir.path / FOLDER}")


def finetune(config: Config) -> int:
    """Fine-tunes on this rank until the run is done or asked to stop, and returns the process's exit code."""
    return run_finetuning(config).exit_code


def run_finetuning(config: Config) -> Outcome:
    """Fine-tunes on this rank; how it ended. Raises UserError and TrainingError."""
    if config.task is not None and config.task.form == "frozen":
        return fit_frozen(config)
    return live(config, open_finetuning, write_results)


def open_finetuning(config: Config, groups: ProcessGroups, alive: Callable[[], None]) -> Finetuning:
    """Returns the workload on the task that the configuration names. Raises DataError and ConfigError."""
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
    """Returns the tokenizer in the run folder; a new run takes it from checkpoint.init_from or task.tokenizer, which it
    then does without.
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
    shares = ", ".join(f"{len(encoded.example_ids)} {split}" for split, encoded in workload.scorer.splits.items())
    cut = f"; {train.truncated} are longer than {train.limit} tokens and cut" if train.truncated else ""
    if workload.task.reads_tokens:
        cut = f"; train has {len(train)} sequences of at most {train.limit} tokens"
    log.say(
        f"{workload.task.name}: {shares} examples, {train.lengths.mean():.1f} tokens a sequence{cut}; "
        f"{workload.batches.per_epoch} batches an epoch, {workload.batches.padding_share():.0%} of them padding"
    )
    log.say(f"{workload.task.name}: loss = {workload.scorer.settings.loss_in_words}")
