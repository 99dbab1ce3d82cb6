"""Fine-tuning's workload: a task's examples, scored on its dev split after every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.transfer import transfer
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.windows import fingerprint
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.process_groups import Grid
from gpt1_ds.model import dropout
from gpt1_ds.objectives.supervised import Supervised
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.batches import MULTIPLE, Batch, TrainBatches, evaluation_batches
from gpt1_ds.tasks.encoding import encode, length_limit, read_out
from gpt1_ds.tasks.metrics import score
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tracking.record import TaskRecord
from gpt1_ds.training.batches import StepBatch
from gpt1_ds.training.build import batch_shape
from gpt1_ds.training.workload import Record, Workload

EPOCHS = 3  # "for most tasks" (section 4.1 of the paper)
DEV = "dev"
UNDEFINED = -2.0  # JSON has no infinity


class Finetuning(Workload):
    """`data` read from the task's files, encoded with the tokenizer in `tokenizer_folder`."""

    objective: Supervised

    def __init__(self, config: Config, data: TaskData, tokenizer_folder: Path, grid: Grid) -> None:
        assert config.task is not None, "fine-tuning has a task"
        self.settings = config.task
        self.tokenizer, self.tokenizer_folder = load_tokenizer(tokenizer_folder), tokenizer_folder
        self.tokenizer_hash = self.tokenizer.fingerprint
        vocab_size = max(config.model.vocab_size or 0, self.tokenizer.vocab_size)
        self.config = config = replace(config, model=replace(config.model, vocab_size=vocab_size))
        self.task, self.grid = data.task, grid
        limit = length_limit(self.settings, config.model.context)
        self.splits = {
            split: encode(data.task, examples, self.tokenizer, limit) for split, examples in data.splits.items()
        }
        train = self.splits["train"]
        self.data_hash = "+".join(self.splits[split].data_hash for split in ("train", DEV))
        self.multiple = _multiple(config, limit)
        self.batches = TrainBatches(train, config.train.global_batch, config.run.seed, self.multiple)
        self.steps = total_steps(config, self.batches.per_epoch)
        self.shape = batch_shape(config, grid)
        self.objective = Supervised(head_spec(data.task, config))
        average = max(1, round(float(train.lengths.mean())))
        self.flops_per_token = flops_per_token(replace(config.model, context=average), vocab_size)

    def batch(self, number: int, step: int) -> StepBatch:
        batch = self.batches.at(number - 1)
        counted = self.grid.tensor_rank == 0 and self.grid.is_first_stage
        mark = sum(
            fingerprint(batch.tokens[rows].reshape(len(rows), -1), rows.astype(np.int64)) for rows in self.shape.rows()
        )
        here = self.micro_batches(batch, (self.config.run.seed, step))
        tokens = int((batch.extract + 1).sum())
        return StepBatch(here, (mark + 2**63) % 2**64 - 2**63 if counted else 0, tokens)

    def sources(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.batches.at(number - 1).examples
        return [{"row": int(row), "example": self.splits["train"].ids[int(examples[row])]} for row in rows]

    def is_evaluation_due(self, step: int) -> bool:
        return step == self.steps or step % self.batches.per_epoch == 0

    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        return [self.measure(engine, DEV, step, tokens)[0]]

    def score(self, records: Sequence[Record]) -> float | None:
        """The task's first metric; one that is not defined is worse than any other, all of which are -1 or more."""
        record = records[0]
        assert isinstance(record, TaskRecord), "as `evaluate` gives it"
        value = record.metrics[self.task.metrics[0]]
        return UNDEFINED if value is None else value

    def measure(self, engine: Engine, split: str, step: int, tokens: int) -> tuple[TaskRecord, NDArray[Any]]:
        """The scores of a split with labels, and its predictions."""
        predictions, loss = self.predict(engine, split)
        scores = score(self.task, self.splits[split], predictions)
        if self.grid.rank == 0:
            for warning in scores.warnings:
                log.say(warning)
        record = TaskRecord(
            step=step, tokens=tokens, task=self.task.name, split=split, loss=loss, metrics=scores.values
        )
        return record, predictions

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        """(class or choice numbers, or scores, [N] in the order of the examples; mean loss), alike on all ranks."""
        encoded = self.splits[split]
        total, found = 0.0, []
        for batch in evaluation_batches(encoded, self.config.train.global_batch, True, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * int((batch.examples >= 0).sum())
            if self.grid.tensor_rank == 0 and self.grid.is_last_stage:
                rows = np.concatenate(self.shape.rows())
                found.append((batch.examples[rows], torch.cat(engine.scores).cpu().numpy()))
        scores: NDArray[np.float32] | None = None
        for part in self.grid.gather(found):
            for examples, values in part:
                if scores is None:
                    scores = np.zeros((len(encoded), values.shape[1]), dtype=np.float32)
                scores[examples[examples >= 0]] = values[examples >= 0]
        assert scores is not None, "every split has examples"
        return predictions(self.task, scores), total / len(encoded)

    def has_labels(self, split: str) -> bool:
        encoded = self.splits[split]
        return bool(
            np.isfinite(encoded.scores).any() if self.task.kind == "regression" else (encoded.labels >= 0).any()
        )

    def transfer(self, engine: Engine, folder: Path, load: Callable[[Path], None]) -> None:
        facts = manifest.read(folder)
        if facts["hashes"]["tokenizer"] != self.tokenizer_hash:
            raise CheckpointError(f"{folder}: was trained with another tokenizer than {self.tokenizer_folder}")
        specials = (self.tokenizer.start_id, self.tokenizer.delimiter_id, self.tokenizer.extract_id)
        fresh = () if "task" in facts else specials
        layers, seed = self.settings.transfer_layers, self.config.run.seed
        self.grid.agree(lambda: transfer(engine, folder, layers, fresh, seed))

    def facts(self) -> dict[str, Any]:
        return {"task": asdict(self.task), "head": asdict(self.objective.head)}

    def micro_batches(self, batch: Batch, dropout_seed: tuple[int, int] = (0, 0)) -> list[MicroBatch]:
        """This rank's. DeepSpeed takes the mean over micro-batches and data-parallel ranks, so weights that sum to 1
        over the batch are multiplied by the number of both.
        """
        parts = np.float32(len(self.shape.rows()) * self.shape.data_size)
        return [self._micro_batch(batch, rows, parts, dropout_seed) for rows in self.shape.rows()]

    def _micro_batch(
        self, batch: Batch, rows: NDArray[np.int64], parts: np.float32, dropout_seed: tuple[int, int]
    ) -> MicroBatch:
        one, C = batch.rows(int(rows[0]), int(rows[-1]) + 1), self.task.sequences
        targets = one.targets if one.targets is not None else one_hot(one.labels, classes(self.task))
        host = self.objective.batch(
            one.tokens, one.lm_weights * parts, one.extract, targets.astype(np.float32), one.weights * parts
        )
        first, stop = int(rows[0]) * C, (int(rows[-1]) + 1) * C
        return MicroBatch.of(host, dropout.row_keys(*dropout_seed, np.arange(first, stop)))


def one_hot(labels: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """float32 [E, K]; a row of zeros where there is no label."""
    matrix: NDArray[np.bool_] = labels[:, None] == np.arange(count)
    return matrix.astype(np.float32)


def classes(task: Task) -> int:
    """K, what the softmax is over."""
    return task.sequences if task.kind == "choice" else task.outputs


def predictions(task: Task, scores: NDArray[np.float32]) -> NDArray[Any]:
    """Class or choice numbers, or the scores of a regression, [N] from the head's scores [N, K]."""
    if task.kind != "regression":
        numbers: NDArray[np.int64] = np.argmax(scores, axis=1)
        return numbers
    return read_out(probabilities(scores), task.score_range)


def probabilities(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64 [N, K]: the softmax of the head's scores [N, K]."""
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    shares: NDArray[np.float64] = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


def head_spec(task: Task, config: Config) -> HeadSpec:
    assert config.task is not None, "fine-tuning has a task"
    settings = config.task
    choice = task.kind == "choice"
    return HeadSpec(task.outputs, task.sequences, choice, settings.head_dropout, settings.lm_coefficient)


def _multiple(config: Config, limit: int) -> int:
    """What the lengths of batches are multiples of: sequence-parallel ranks each take an equal run of positions."""
    tensor = config.parallel.tensor
    if not config.parallel.sequence:
        return MULTIPLE
    if limit % tensor:
        raise ConfigError(f"task.max_length={limit} is no multiple of parallel.tensor={tensor}, which cuts sequences")
    return math.lcm(MULTIPLE, tensor)


def total_steps(config: Config, per_epoch: int) -> int:
    """Updates of a fine-tuning run; each epoch's last partial batch is dropped."""
    train = config.train
    if train.steps is not None:
        return train.steps
    return max(1, round((EPOCHS if train.epochs is None else train.epochs) * per_epoch))
