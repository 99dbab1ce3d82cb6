"""Scores of a task in text: its answers are ranked by their log-likelihood, nothing is decoded.

What a model writes by itself, taking the likeliest token each time, is an answer exactly where each of the answer's
tokens has the highest logit after those before it. So the same pass gives `exact_match`.

Shapes: N examples, K answers, G rows of the global batch; B rows and S positions of a batch, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.task_scores import LocalScores, TaskScorer
from gpt1_ds.evaluation.token_scores import TokenScorer
from gpt1_ds.evaluation.written_scores import WrittenScorer
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.losses import TextLoss
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import Texts, TextToText
from gpt1_ds.tasks.batches import PADDING_ROW, TaskBatch, build_batch
from gpt1_ds.tasks.encoding import Encoded
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.text import encode_answers, text_limits
from gpt1_ds.tracking.record import TaskRecord

BATCH_TOKENS = 8192  # positions of one forward pass, padding included
Tokens = NDArray[np.integer]


@torch.no_grad()
def row_scores(model: DenseModel, batch: HostBatch) -> NDArray[np.float32]:
    """Returns float32 [B, 2]: of each row the log-likelihood of the tokens that its labels count (nats), and 1 where
    the model writes them by itself, taking the likeliest each time.
    """
    device = next(model.parameters()).device
    micro_batch = MicroBatch.of(batch, np.zeros(batch.inputs[0].shape[1], dtype=np.int64))
    inputs, labels = (tuple(part.to(device) for part in parts) for parts in (micro_batch.inputs, micro_batch.labels))
    output = model.output
    loss = TextLoss(output.vocab_size, output.tensor)
    *ids, facts_BF = inputs
    loss(output.project(model.states(*ids, facts_BF=facts_BF)), labels)
    found: NDArray[np.float32] = loss.scores[0].cpu().numpy()
    return found


def target_log_likelihoods(
    model: DenseModel,
    pairs: Sequence[tuple[Tokens, Tokens]],
    pad: int,
    given: int = 0,
    batch_tokens: int = BATCH_TOKENS,
) -> NDArray[np.float64]:
    """Returns float64 [len(pairs), 2]: of each (source, target) the log-likelihood (nats) of the target's tokens but
    the first `given` ones, which a decoder reads, and 1 where each is the likeliest. A source has a token at least.
    Neighbours share a batch: sort by length.
    """
    scores = np.zeros((len(pairs), 2))
    for batch in neighbours([len(source) + len(target) for source, target in pairs], batch_tokens):
        texts = Texts(*_padded([pairs[n][0] for n in batch], pad), *_padded([pairs[n][1] for n in batch], pad))
        most = int((texts.source_B + texts.target_B).max()) - 1
        stacks = (texts.source_BS.shape[1], texts.target_BT.shape[1]) if model.stacks == 2 else (most,)
        host = texts.host_batch(stacks, pad, np.ones(len(batch)))
        _, weights = host.labels
        weights[:given] = 0
        scores[batch] = row_scores(model, host)
    return scores


def neighbours(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yields the numbers of neighbours whose count times the longest is at most `tokens`; a longer one is alone."""
    batch: list[int] = []
    longest = 0
    for number, length in enumerate(lengths):
        if batch and max(longest, length) * (len(batch) + 1) > tokens:
            yield batch
            batch, longest = [], 0
        batch.append(number)
        longest = max(longest, length)
    if batch:
        yield batch


def _padded(rows: Sequence[Tokens], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns ([B, longest], lengths [B])"""
    lengths_B = np.array([len(row) for row in rows], dtype=np.int64)
    padded_BS = np.full((len(rows), max(1, int(lengths_B.max()))), pad, dtype=np.int64)
    for row, padded_S in zip(rows, padded_BS, strict=True):
        padded_S[: len(row)] = row
    return padded_BS, lengths_B


class TextScorer(TaskScorer):
    """Ranks the answers of a task in text by their likelihood. A row is a source and one of the answers."""

    def _prepare(self, limit: int) -> tuple[int, int]:
        answers, stacks = encode_answers(self.task, self.tokenizer), self.config.model.stacks
        self.objective = TextToText.of(stacks, answers, self.tokenizer.pad_id, limit, self.multiple)
        return text_limits(self.task, self.settings, self.tokenizer, limit, stacks)

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        scores_NK, written_NK = self._scored(engine, split)
        labels = self.splits[split].labels
        known = np.flatnonzero(labels >= 0)
        predictions, exact_match = (
            self.task.predictions(scores_NK),
            written_NK[known, labels[known]].mean(dtype=np.float64),
        )
        scores, loss = self._metrics(split, predictions), self._loss(split, scores_NK)
        return self._record(split, scores, loss, step, tokens, exact_match=float(exact_match)), predictions

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        scores_NK, _ = self._scored(engine, split)
        return self.task.predictions(scores_NK), self._loss(split, scores_NK)

    def flops_per_token(self) -> int:
        average = round(float(self.splits["train"].lengths.mean()))
        lengths, target = self.objective.positions(average), float(self.objective.length_K.mean())
        return flops_per_token(self.config.model, self.vocab_size, target / sum(lengths), lengths=lengths)

    def fed(self, batch: TaskBatch) -> int:
        return int(batch.lengths.sum() + self.objective.length_K[batch.labels].sum())

    def _loss(self, split: str, scores_NK: NDArray[np.float32]) -> float:
        """Nats per token of the right answers, as in training; 0 where none is known."""
        labels = self.splits[split].labels
        known = np.flatnonzero(labels >= 0)
        tokens = max(1, int(self.objective.length_K[labels[known]].sum()))
        return -float(scores_NK[known, labels[known]].sum(dtype=np.float64)) / tokens

    def _scored(self, engine: Engine, split: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns (log-likelihood of each answer, 1 where the model writes it by itself), [N, K] both, the same on all
        ranks.
        """
        encoded, K, size = self.splits[split], len(self.task.answers), self.config.train.global_batch
        pairs, local = pairs_by_length(encoded, K), LocalScores()
        for start in range(0, len(pairs), size):
            pair_G = np.full(size, PADDING_ROW)
            taken = pairs[start : start + size]
            pair_G[: len(taken)] = taken
            engine.evaluate(self.micro_batches(pair_batch(encoded, pair_G, K, self.multiple)))
            local += self._local_scores(engine, pair_G)
        scores_NK2 = self._gather_scores(local, len(pairs)).reshape(-1, K, 2)
        return scores_NK2[..., 0], scores_NK2[..., 1]

    def _host_batch(self, batch: TaskBatch, micro: TaskBatch, parts: np.float32) -> HostBatch:
        counted = int(self.objective.length_K[batch.labels[batch.weights > 0]].sum())
        weight_B = (micro.weights > 0) * (parts / max(1, counted))
        host_batch: HostBatch = self.objective.batch(micro.tokens[:, 0], micro.lengths[:, 0], micro.labels, weight_B)
        return host_batch


def pairs_by_length(encoded: Encoded, answers: int) -> NDArray[np.int64]:
    """Returns the numbers n K + k of all examples n and answers k, those of the longest source first."""
    order = np.argsort(-encoded.lengths[:, 0], kind="stable")
    return (order[:, None] * answers + np.arange(answers)).reshape(-1)


def pair_batch(encoded: Encoded, pair_B: NDArray[np.int64], answers: int, multiple: int) -> TaskBatch:
    """Returns the batch of these pairs; a negative number only fills up. Labels are the answers, right or wrong."""
    real = pair_B >= 0
    batch = build_batch(encoded, np.where(real, pair_B // answers, PADDING_ROW), multiple)
    return replace(batch, labels=pair_B % answers, weights=(real / real.sum()).astype(np.float32))


def make_scorer(config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> TaskScorer:
    """Returns the scorer of a task's own head, of answers in text, ranked or written, or of scores of tokens."""
    assert config.task is not None, "whoever scores a task has one"
    if data.task.reads_tokens:
        return TokenScorer(config, data, tokenizer_folder, groups)
    if data.task.writes_text:
        return WrittenScorer(config, data, tokenizer_folder, groups)
    kind = TextScorer if config.task.form == "text" else TaskScorer
    return kind(config, data, tokenizer_folder, groups)
