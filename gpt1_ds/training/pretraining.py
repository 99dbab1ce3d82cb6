"""`pretrain`: the next token, or what else the objective asks for, of windows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.architecture.count import training_flops_per_token
from gpt1_ds.common import log
from gpt1_ds.config import Config, with_vocabulary
from gpt1_ds.data.sources import Data, first_passes, mixture_note, open_data, row_note
from gpt1_ds.data.verify import files_of, verify_share
from gpt1_ds.engine import shared_disk
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import batch_shape, training_batches
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.held_out import held_out_loss
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.training import schedule
from gpt1_ds.training.batches import StepBatch
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.run import live
from gpt1_ds.training.state import Outcome
from gpt1_ds.training.workload import Record, Workload


class Pretraining(Workload):
    objective: TextObjective

    def __init__(self, config: Config, data: Data, groups: ProcessGroups) -> None:
        self.config = config = with_vocabulary(config, data.tokenizer.vocab_size)
        self.data, self.groups = data, groups
        self.tokenizer, self.tokenizer_folder = data.tokenizer, data.tokenizer_folder
        self.tokenizer_hash, self.data_hash = data.tokenizer_hash, data.data_hash
        self.shape = batch_shape(config, groups)
        rows = data.held_out.rows if data.held_out else 0
        measured = config.train.eval_batches * config.train.global_batch
        if 0 < measured < rows:
            self.held_out_part = f"{measured} of {rows} rows"
        self.batch_sizes, self.row_tokens = config.batch_sizes, config.row.fed
        once = data.training.tokens_per_epoch
        self.steps = schedule.total_steps(config.train, config.data, config.row, once, first_passes(config, data))
        self.objective = pretraining_objective(config, data.tokenizer, data.data_hash, config.run.seed)
        self.held_out_objective = pretraining_objective(config, data.tokenizer, data.data_hash)
        self.flops_per_token = training_flops_per_token(config, config.model.vocab_size or 0)

    def batch(self, number: int, step: int) -> StepBatch:
        shape = self.shape.of_batch(number, self.batch_sizes)
        batch = self.data.training.batch(number, shape)
        counted = self.groups.tensor_rank == 0 and self.groups.is_first_stage  # each row once
        micro_batches = training_batches(self.objective, batch.micro_batches, self.config.run.seed, step)
        predicted = None
        if not self.objective.predicts_all:
            predicted, _ = self.objective.counts(batch.micro_batches[0], shape.global_batch, shape.global_batch)
        return StepBatch(micro_batches, batch.fingerprint * counted, shape.global_batch * self.row_tokens, predicted)

    def sources(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        return self.data.training.documents(number, rows, self.shape.of_batch(number, self.batch_sizes))

    def is_evaluation_due(self, step: int) -> bool:
        every = self.config.train.eval_every
        return step == self.steps or (every > 0 and step % every == 0)

    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        """Returns held-out loss over `train.eval_batches`; nothing without held-out data."""
        if self.data.held_out is None:
            return []
        limit = self.config.train.eval_batches
        return [held_out_loss(engine, self.data, self.held_out_objective, self.shape, step, tokens, limit)]

    def facts(self) -> dict[str, Any]:
        return {"head": asdict(self.objective.head)} if self.objective.head is not None else {}

    def transfer(self, engine: Engine, folder: Path, load: Callable[[Path], None]) -> None:
        load(folder)


class MeasuredPretraining(Pretraining):
    """Pre-training that is also measured by train.evaluations, or keeps the best checkpoint by what is measured."""

    def __init__(self, config: Config, data: Data, groups: ProcessGroups) -> None:
        from gpt1_ds.training.evaluations import Evaluations  # which loads all tasks

        super().__init__(config, data, groups)
        self.measure = self.config.checkpoint.best or ""
        self.evaluations = Evaluations(self.config, self.steps, self.tokenizer, groups)

    def is_evaluation_due(self, step: int) -> bool:
        return super().is_evaluation_due(step) or bool(self.evaluations.due(step))

    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        found = super().evaluate(engine, step, tokens) if super().is_evaluation_due(step) else []
        return found + self.evaluations.measure(engine, self.objective.head, step, tokens)

    def score(self, records: Sequence[Record]) -> float | None:
        return self.evaluations.score(records)


def open_pretraining(config: Config, groups: ProcessGroups, alive: Callable[[], None]) -> Pretraining:
    """Returns the workload on the data that the configuration names, verified. Raises DataError and ConfigError."""
    data = groups.agree(lambda: open_data(config))
    groups.compare({"data.path": data.data_hash, "the tokenizer of data.path": data.tokenizer_hash})
    if config.data.verify:
        streams = [*data.training.streams, *([data.held_out.stream] if data.held_out else [])]
        part = shared_disk.reading_part(groups, files_of(streams), run_folder(config).path)
        groups.agree(lambda: verify_share(streams, part, alive))
    is_measured = config.train.evaluations or config.checkpoint.best
    workload = (MeasuredPretraining if is_measured else Pretraining)(config, data, groups)
    if groups.rank == 0:
        sequences = config.batch_sizes.before(workload.steps + 1)
        for note in filter(None, (row_note(config, data), mixture_note(config, data, sequences))):
            log.say(note)
    return workload


def pretrain(config: Config) -> int:
    """Trains on this rank until the run is done or asked to stop, and returns the process's exit code."""
    return run_pretraining(config).exit_code


def run_pretraining(config: Config) -> Outcome:
    """Trains on this rank; how it ended. Raises UserError and TrainingError."""
    return live(config, open_pretraining)
