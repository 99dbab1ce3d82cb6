"""A task's scores: its examples, encoded for a model, and what the model's head says of them.

Shapes: N examples of C sequences, E examples of a micro-batch, K classes or choices.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec, head_kind
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.config.task import SENTENCES
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.build import batch_shape
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model import dropout
from gpt1_ds.objectives.sentences import of_head
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.batches import MULTIPLE, Batch, evaluation_batches
from gpt1_ds.tasks.encoding import encode, length_limit, read_out
from gpt1_ds.tasks.layouts import fitted
from gpt1_ds.tasks.metrics import score
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.sentences import scored
from gpt1_ds.tracking.record import TaskRecord


class TaskScorer:
    """`data` read from the task's files, encoded with the tokenizer in `tokenizer_folder`. All ranks call `measure` and
    `predict` together. Its `config` names the vocabulary size.
    """

    def __init__(self, config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> None:
        assert config.task is not None, "whoever scores a task has one"
        self.settings, self.groups = config.task, groups
        self.task = fitted(data.task, config.task, config.model)
        self.tokenizer = load_tokenizer(tokenizer_folder)
        self.vocab_size = max(config.model.vocab_size or 0, self.tokenizer.vocab_size)
        self.config = config = replace(config, model=replace(config.model, vocab_size=self.vocab_size))
        limit = length_limit(self.settings, config.model.context)
        self.splits = {
            split: encode(self.task_of(split), examples, self.tokenizer, limit)
            for split, examples in data.splits.items()
        }
        self.multiple = _multiple(config, limit)
        self.shape = batch_shape(config, groups)
        self.objective = of_head(head_spec(self.task, config))

    def task_of(self, split: str) -> Task:
        """What the examples of a split are: sentence vectors are judged by scored pairs, whatever trains them."""
        return self.task if split == "train" else scored(self.task)

    def measure(self, engine: Engine, split: str, step: int, tokens: int) -> tuple[TaskRecord, NDArray[Any]]:
        """The scores of a split with labels, and its predictions."""
        predictions, loss = self.predict(engine, split)
        task = self.task_of(split)
        scores = score(task, self.splits[split], predictions)
        if self.groups.rank == 0:
            for warning in scores.warnings:
                log.say(warning)
        record = TaskRecord(step=step, tokens=tokens, task=task.name, split=split, loss=loss, metrics=scores.values)
        return record, predictions

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        """(class or choice numbers, or scores, [N] in the order of the examples; mean loss), alike on all ranks."""
        encoded = self.splits[split]
        total, found = 0.0, []
        for batch in evaluation_batches(encoded, self.config.train.global_batch, True, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * int((batch.examples >= 0).sum())
            if self.groups.tensor_rank == 0 and self.groups.is_last_stage:
                rows = np.concatenate(self.shape.rows())
                found.append((batch.examples[rows], torch.cat(engine.scores).cpu().numpy()))
        scores: NDArray[np.float32] | None = None
        for part in self.groups.gather(found):
            for examples, values in part:
                if scores is None:
                    scores = np.zeros((len(encoded), values.shape[1]), dtype=np.float32)
                scores[examples[examples >= 0]] = values[examples >= 0]
        assert scores is not None, "every split has examples"
        return predictions(self.task, scores), total / len(encoded)

    def has_labels(self, split: str) -> bool:
        encoded = self.splits[split]
        has_scores = self.task_of(split).has_scores
        return bool(np.isfinite(encoded.scores).any() if has_scores else (encoded.labels >= 0).any())

    def micro_batches(self, batch: Batch, dropout_seed: tuple[int, int] = (0, 0)) -> list[MicroBatch]:
        """This rank's. DeepSpeed takes the mean over micro-batches and data-parallel ranks, so weights that sum to 1
        over the batch are multiplied by the number of both.
        """
        parts = np.float32(len(self.shape.rows()) * self.shape.data_size)
        return [self._micro_batch(batch, rows, parts, dropout_seed) for rows in self.shape.rows()]

    def _micro_batch(
        self, batch: Batch, rows: NDArray[np.int64], parts: np.float32, dropout_seed: tuple[int, int]
    ) -> MicroBatch:
        one, C = batch.rows(int(rows[0]), int(rows[-1]) + 1), batch.tokens.shape[1]
        targets = one.targets if one.targets is not None else one_hot(one.labels, classes(self.task))
        host = self.objective.batch(
            *(one.tokens, one.lm_weights * parts, one.lengths, one.seconds),
            *(targets.astype(np.float32), one.weights * parts),
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
    if not task.has_scores and task.kind != SENTENCES:
        numbers: NDArray[np.int64] = np.argmax(scores, axis=1)
        return numbers
    if task.outputs == 1 or task.kind == SENTENCES:
        return scores[:, 0].astype(np.float64)
    return read_out(probabilities(scores), task.score_range)


def probabilities(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64 [N, K]: the softmax of the head's scores [N, K]."""
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    shares: NDArray[np.float64] = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


def head_spec(task: Task, config: Config) -> HeadSpec:
    assert config.task is not None, "fine-tuning has a task"
    if task.kind == SENTENCES:
        own, outputs = config.task, task.outputs if task.loss == "nli" else 1
        group = own.group if task.loss == "ranking" else 1
        return HeadSpec(
            *(outputs, task.sequences), dropout=0.0, lm_coefficient=0.0, kind=own.pooling, loss=task.loss,
            margin=own.margin, group=group,
        )  # fmt: skip
    dropout, coefficient, kind = config.task.head_dropout, config.task.lm_coefficient, head_kind(config.model)
    return HeadSpec(task.outputs, task.sequences, task.kind == "choice", dropout, coefficient, kind)


def _multiple(config: Config, limit: int) -> int:
    """What the lengths of batches are multiples of: sequence-parallel ranks each take an equal run of positions. No
    dropout mask depends on it.
    """
    tensor = config.parallel.tensor
    if not config.parallel.sequence:
        return MULTIPLE
    if limit % tensor:
        raise ConfigError(f"task.max_length={limit} is no multiple of parallel.tensor={tensor}, which cuts sequences")
    return math.lcm(MULTIPLE, tensor)
