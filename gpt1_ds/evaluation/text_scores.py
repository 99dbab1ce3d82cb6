"""Scores of a task in text: its answers are ranked by their log-likelihood, nothing is decoded.

What a model writes by itself, taking the likeliest token each time, is an answer exactly where each of the answer's
tokens has the highest logit after those before it. So the same pass gives `exact_match`.

Shapes: N examples, K answers, G rows of the global batch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.task_scores import TaskScorer
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import TextToText
from gpt1_ds.tasks.batches import PADDING_ROW, Batch, build_batch
from gpt1_ds.tasks.encoding import Encoded
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.text import encode_answers, source_limit
from gpt1_ds.tracking.record import TaskRecord


class TextScorer(TaskScorer):
    """A row is a source and one of the answers."""

    def _prepare(self, limit: int) -> int:
        answers, stacks = encode_answers(self.task, self.tokenizer), self.config.model.stacks
        self.objective = TextToText.of(stacks, answers, self.tokenizer.pad_id, limit, self.multiple)
        return source_limit(limit, answers, stacks)

    def measure(self, engine: Engine, split: str, step: int, tokens: int) -> tuple[TaskRecord, NDArray[Any]]:
        scores_NK, written_NK = self._scored(engine, split)
        labels = self.splits[split].labels
        known = np.flatnonzero(labels >= 0)
        found, exact = self.task.predictions(scores_NK), float(written_NK[known, labels[known]].mean(dtype=np.float64))
        return self._record(split, found, self._loss(split, scores_NK), step, tokens, exact_match=exact), found

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        scores_NK, _ = self._scored(engine, split)
        return self.task.predictions(scores_NK), self._loss(split, scores_NK)

    def flops_per_token(self) -> int:
        average = round(float(self.splits["train"].lengths.mean()))
        lengths, target = self.objective.positions(average), float(self.objective.length_K.mean())
        return flops_per_token(self.config.model, self.vocab_size, target / sum(lengths), lengths=lengths)

    def fed(self, batch: Batch) -> int:
        return int(batch.lengths.sum() + self.objective.length_K[batch.labels].sum())

    def _loss(self, split: str, scores_NK: NDArray[np.float32]) -> float:
        """Nats per token of the right answers, as in training; 0 where none is known."""
        labels = self.splits[split].labels
        known = np.flatnonzero(labels >= 0)
        tokens = max(1, int(self.objective.length_K[labels[known]].sum()))
        return -float(scores_NK[known, labels[known]].sum(dtype=np.float64)) / tokens

    def _scored(self, engine: Engine, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(log-likelihood of each answer, 1 where the model writes it by itself), [N, K] both, alike on all ranks."""
        encoded, K, size = self.splits[split], len(self.task.answers), self.config.train.global_batch
        pairs, found = pairs_by_length(encoded, K), []
        for start in range(0, len(pairs), size):
            pair_G = np.full(size, PADDING_ROW)
            taken = pairs[start : start + size]
            pair_G[: len(taken)] = taken
            engine.evaluate(self.micro_batches(pair_batch(encoded, pair_G, K, self.multiple)))
            found += self._here(engine, pair_G)
        scores_NK2 = self._gathered(found, len(pairs)).reshape(-1, K, 2)
        return scores_NK2[..., 0], scores_NK2[..., 1]

    def _host_batch(self, batch: Batch, one: Batch, parts: np.float32) -> HostBatch:
        counted = int(self.objective.length_K[batch.labels[batch.weights > 0]].sum())
        weight_B = (one.weights > 0) * (parts / max(1, counted))
        made: HostBatch = self.objective.batch(one.tokens[:, 0], one.lengths[:, 0], one.labels, weight_B)
        return made


def pairs_by_length(encoded: Encoded, answers: int) -> NDArray[np.int64]:
    """Numbers n K + k of all examples n and answers k, those of the longest source first."""
    order = np.argsort(-encoded.lengths[:, 0], kind="stable")
    return (order[:, None] * answers + np.arange(answers)).reshape(-1)


def pair_batch(encoded: Encoded, pair_B: NDArray[np.int64], answers: int, multiple: int) -> Batch:
    """The batch of these pairs; a negative number only fills up. Labels are the answers, right or wrong."""
    real = pair_B >= 0
    batch = build_batch(encoded, np.where(real, pair_B // answers, PADDING_ROW), multiple)
    return replace(batch, labels=pair_B % answers, weights=(real / real.sum()).astype(np.float32))


def make_scorer(config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> TaskScorer:
    """For a task's own head, or for answers in text."""
    assert config.task is not None, "whoever scores a task has one"
    kind = TextScorer if config.task.form == "text" else TaskScorer
    return kind(config, data, tokenizer_folder, groups)
