"""A task's scores: its examples, encoded for a model, and what the model's head says of each. Tasks whose tokens have
scores (spans and tags) are in token_scores.py, those whose answers the model writes in written_scores.py.

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

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.build import batch_shape
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model import dropout
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.supervised import of_head
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.batches import MULTIPLE, TaskBatch, batches_by_length
from gpt1_ds.tasks.encoding import fitted, length_limit
from gpt1_ds.tasks.example import hash_examples
from gpt1_ds.tasks.metrics import TaskScores, score
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.sequences import encode_examples
from gpt1_ds.tracking.record import TaskRecord

LocalScores = list[tuple[NDArray[np.int64], NDArray[np.float32]]]  # (numbers of examples, their scores [rows, K])


class TaskScorer:
    """Scores the examples of `data`, encoded with the tokenizer in `tokenizer_folder`. All ranks call `measure` and
    `predict` together. Its `config` has the vocabulary size.
    """

    def __init__(self, config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> None:
        assert config.task is not None, "whoever scores a task has one"
        self.settings, self.groups = config.task, groups
        self.task = fitted(data.task, config.task, config.model)
        self.tokenizer = load_tokenizer(tokenizer_folder)
        self.vocab_size = max(config.model.vocab_size or 0, self.tokenizer.vocab_size)
        self.config = config = replace(config, model=replace(config.model, vocab_size=self.vocab_size))
        limit = length_limit(self.settings, config.model.context)
        self.multiple = _multiple(config, limit)
        self.shape = batch_shape(config, groups)
        limit, answer = self._prepare(limit)
        self.splits = {
            split: encode_examples(self.task_of(split), examples, self.tokenizer, self.settings, limit, answer)
            for split, examples in data.splits.items()
        }
        self.hashes = {split: hash_examples(rows) for split, rows in data.splits.items() if split != "train"}

    def _prepare(self, limit: int) -> tuple[int, int]:
        """Sets the objective. Returns how many tokens the texts of a sequence, and an answer in text, may take."""
        self.objective: Any = of_head(self.task.head(self.settings, self.config.model))
        return limit, 0

    def task_of(self, split: str) -> Task:
        """Returns what the examples of a split are: scored pairs judge sentence vectors, whatever trains them."""
        return self.task if split == "train" else self.task.evaluation_task

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        """Returns the scores of a split with labels, and its predictions. Where answers are written, only
        task.decoded_examples of it are scored unless `whole`.
        """
        predictions, loss = self.predict(engine, split)
        return self._record(split, self._metrics(split, predictions), loss, step, tokens), predictions

    def _metrics(self, split: str, predictions: NDArray[Any]) -> TaskScores:
        return score(self.task_of(split), self.splits[split], predictions)

    def _record(self, split: str, scores: TaskScores, loss: float, step: int, tokens: int, **more: float) -> TaskRecord:
        task = self.task_of(split)
        if self.groups.rank == 0:
            for warning in scores.warnings:
                log.say(warning)
        metrics = {**scores.values, **more}
        return TaskRecord(step=step, tokens=tokens, task=task.name, split=split, loss=loss, metrics=metrics)

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        """Returns (class or choice numbers, or scores, [N] in the order of the examples; mean loss), the same on all
        ranks.
        """
        encoded = self.splits[split]
        total, local = 0.0, LocalScores()
        for batch in batches_by_length(encoded, self.config.train.global_batch, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * int((batch.examples >= 0).sum())
            local += self._local_scores(engine, batch.examples)
        return self.task.predictions(self._gather_scores(local, len(encoded))), total / len(encoded)

    def _local_scores(self, engine: Engine, numbers: NDArray[np.int64]) -> LocalScores:
        """Returns what this rank has of the scores of the examples with these `numbers`."""
        if self.groups.tensor_rank or not self.groups.is_last_stage:
            return []
        return [(numbers[np.concatenate(self.shape.rows())], torch.cat(engine.loss.scores).cpu().numpy())]

    def _gather_scores(self, local: LocalScores, count: int) -> NDArray[np.float32]:
        """Returns float32 [count, K], the same on all ranks. Rows that only fill a batch up have the number -1."""
        everywhere = [pair for rank in self.groups.gather(local) for pair in rank]
        scores = np.zeros((count, everywhere[0][1].shape[1]), dtype=np.float32)
        for numbers, values in everywhere:
            scores[numbers[numbers >= 0]] = values[numbers >= 0]
        return scores

    def has_labels(self, split: str) -> bool:
        encoded = self.splits[split]
        has_scores = self.task_of(split).has_scores
        return bool(np.isfinite(encoded.scores).any() if has_scores else (encoded.labels >= 0).any())

    def flops_per_token(self) -> int:
        """Returns the FLOPs of training, where sequences have the average length."""
        average = max(1, round(float(self.splits["train"].lengths.mean())))
        model = replace(self.config.model, context=average)
        return flops_per_token(model, self.vocab_size, head=self.objective.head)

    def fed(self, batch: TaskBatch) -> int:
        """Returns the number of tokens of a batch without padding."""
        return int(batch.lengths.sum())

    def micro_batches(self, batch: TaskBatch, dropout_seed: tuple[int, int] = (0, 0)) -> list[MicroBatch]:
        """Returns this rank's micro-batches. DeepSpeed takes the mean over micro-batches and data-parallel ranks, so
        weights that sum to 1 over the batch are multiplied by the number of both.
        """
        parts, C = np.float32(len(self.shape.rows()) * self.shape.data_size), batch.tokens.shape[1]
        micro_batches = []
        for rows in self.shape.rows():
            first, stop = int(rows[0]), int(rows[-1]) + 1
            keys_B = dropout.row_keys(*dropout_seed, np.arange(first * C, stop * C))
            micro_batches.append(MicroBatch.of(self._host_batch(batch, batch.rows(first, stop), parts), keys_B))
        return micro_batches

    def _host_batch(self, batch: TaskBatch, micro: TaskBatch, parts: np.float32) -> HostBatch:
        """Returns the micro-batch `micro` of `batch` as the objective gives it to the model."""
        targets = micro.targets if micro.targets is not None else one_hot(micro.labels, self.task.classes)
        host_batch: HostBatch = self.objective.batch(
            *(micro.tokens, micro.lm_weights * parts, micro.lengths, micro.seconds),
            *(targets.astype(np.float32), micro.weights * parts),
        )
        return host_batch


def one_hot(labels: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """Returns float32 [E, K]; the row of an example without a label is zeros."""
    matrix: NDArray[np.bool_] = labels[:, None] == np.arange(count)
    return matrix.astype(np.float32)


def _multiple(config: Config, limit: int) -> int:
    """Returns what the lengths of batches are multiples of: each sequence-parallel rank takes an equal run of
    positions. No dropout mask depends on it.
    """
    tensor = config.parallel.tensor
    if not config.parallel.sequence:
        return MULTIPLE
    if limit % tensor:
        raise ConfigError(f"task.max_length={limit} is no multiple of parallel.tensor={tensor}, which cuts sequences")
    return math.lcm(MULTIPLE, tensor)
