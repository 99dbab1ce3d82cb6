"""A task's scores: its examples, encoded for a model, and what the model's head says of them, of a sequence or of every
token (spans and tags); or the texts that the model writes.

Whatever layout the engine has, every rank gathers the whole model in fp32 and writes its part of the texts, so that all
ranks work, a pipeline's, too, and the texts are those of one process.

Shapes: N examples of C sequences, E examples of a micro-batch, K classes or choices; R rows of N examples, B rows and T
positions of a batch, O outputs of a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.checkpoint.whole import of_engine
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.build import batch_shape
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.decoding import PROMPTS, write
from gpt1_ds.evaluation.sampling import Sampling, sampling_of
from gpt1_ds.model import dropout
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import SourceToTarget, Texts
from gpt1_ds.objectives.supervised import of_head
from gpt1_ds.tasks.base import Task, hash_examples
from gpt1_ds.tasks.batches import MULTIPLE, TaskBatch, batches_by_length
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.encoding import fitted, length_limit
from gpt1_ds.tasks.metrics import TaskScores, score, score_examples
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.sequences import encode_examples
from gpt1_ds.tasks.target_rows import TargetRows
from gpt1_ds.tasks.text import text_limits
from gpt1_ds.tasks.token_metrics import objects, parts
from gpt1_ds.tasks.token_rows import Answered, TokenRows
from gpt1_ds.tasks.written_text import signature
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
        self.multiple = _multiple(config, limit)
        self.shape = batch_shape(config, groups)
        limit, answer = self._prepare(limit)
        self.splits = {
            split: encode_examples(self.task_of(split), examples, self.tokenizer, self.settings, limit, answer)
            for split, examples in data.splits.items()
        }
        self.hashes = {split: hash_examples(found) for split, found in data.splits.items() if split != "train"}

    def _prepare(self, limit: int) -> tuple[int, int]:
        """Choose the objective; how many tokens the texts of each sequence, and an answer in text, may take."""
        self.objective: Any = of_head(self.task.head(self.settings, self.config.model))
        return limit, 0

    def task_of(self, split: str) -> Task:
        """What the examples of a split are: sentence vectors are judged by scored pairs, whatever trains them."""
        return self.task if split == "train" else self.task.judged

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        """The scores of a split with labels, and its predictions. Unless it is scored as a `whole`, examples whose
        answers are written may be task.decoded_examples of it.
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
        """(class or choice numbers, or scores, [N] in the order of the examples; mean loss), alike on all ranks."""
        encoded = self.splits[split]
        total, found = 0.0, []
        for batch in batches_by_length(encoded, self.config.train.global_batch, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * int((batch.examples >= 0).sum())
            found += self._here(engine, batch.examples)
        return self.task.predictions(self._gathered(found, len(encoded))), total / len(encoded)

    def _here(self, engine: Engine, numbers: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """What this rank has of the evaluation's scores: (numbers of its rows, their scores)."""
        if self.groups.tensor_rank or not self.groups.is_last_stage:
            return []
        return [(numbers[np.concatenate(self.shape.rows())], torch.cat(engine.loss.scores).cpu().numpy())]

    def _gathered(self, found: list[tuple[NDArray[np.int64], NDArray[np.float32]]], count: int) -> NDArray[np.float32]:
        """float32 [count, K], alike on all ranks; rows that only fill up are numbered -1."""
        parts = [pair for rank in self.groups.gather(found) for pair in rank]
        scores = np.zeros((count, parts[0][1].shape[1]), dtype=np.float32)
        for numbers, values in parts:
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
        """Tokens of a batch, padding apart."""
        return int(batch.lengths.sum())

    def micro_batches(self, batch: TaskBatch, dropout_seed: tuple[int, int] = (0, 0)) -> list[MicroBatch]:
        """This rank's. DeepSpeed takes the mean over micro-batches and data-parallel ranks, so weights that sum to 1
        over the batch are multiplied by the number of both.
        """
        parts, C, made = np.float32(len(self.shape.rows()) * self.shape.data_size), batch.tokens.shape[1], []
        for rows in self.shape.rows():
            first, stop = int(rows[0]), int(rows[-1]) + 1
            keys_B = dropout.row_keys(*dropout_seed, np.arange(first * C, stop * C))
            made.append(MicroBatch.of(self._host_batch(batch, batch.rows(first, stop), parts), keys_B))
        return made

    def _host_batch(self, batch: TaskBatch, one: TaskBatch, parts: np.float32) -> HostBatch:
        """`one` is a micro-batch of `batch`."""
        targets = one.targets if one.targets is not None else one_hot(one.labels, self.task.classes)
        made: HostBatch = self.objective.batch(
            *(one.tokens, one.lm_weights * parts, one.lengths, one.seconds),
            *(targets.astype(np.float32), one.weights * parts),
        )
        return made


def one_hot(labels: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """float32 [E, K]; a row of zeros where there is no label."""
    matrix: NDArray[np.bool_] = labels[:, None] == np.arange(count)
    return matrix.astype(np.float32)


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


DEV = "dev"


class TokenScorer(TaskScorer):
    """Where a question may have no answer, it has none if that is likelier than the best answer by more than a
    threshold, which is the one that is best on dev.
    """

    threshold = 0.0  # logits
    _chosen: int | None = None  # the step whose weights the threshold is of

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        answered, loss = self._answered(engine, split)
        more: dict[str, float] = {}
        if self.task.may_refuse:
            if split != DEV and self._chosen != step:
                self._choose(self._answered(engine, DEV)[0], step)
            elif split == DEV:
                self._choose(answered, step)
                more["null_threshold"] = self.threshold
        found = refused(answered, self.threshold)
        return self._record(split, self._metrics(split, found), loss, step, tokens, **more), found

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        answered, loss = self._answered(engine, split)
        return refused(answered, self.threshold), loss

    def _choose(self, answered: Answered, step: int) -> None:
        self.threshold, self._chosen = best_threshold(self.task, self._rows(DEV), answered), step

    def _rows(self, split: str) -> TokenRows:
        rows = self.splits[split]
        assert isinstance(rows, TokenRows), "such a task has no others"
        return rows

    def _answered(self, engine: Engine, split: str) -> tuple[Answered, float]:
        """(what is found of each example, mean loss), alike on all ranks."""
        rows = self._rows(split)
        total, count, found = 0.0, 0, []
        for batch in batches_by_length(rows, self.config.train.global_batch, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * batch.counted
            count += batch.counted
            found += self._scored(engine, batch)
        scores: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(rows)
        for number, row_TO in (pair for rank in self.groups.gather(found) for pair in rank):
            scores[number] = row_TO
        return rows.answers(scores), total / max(1, count)

    def _scored(self, engine: Engine, batch: TaskBatch) -> list[tuple[int, NDArray[np.float32]]]:
        """(number of a row, scores of its tokens [T, O]) of what this rank has of the batch."""
        if self.groups.tensor_rank or not self.groups.is_last_stage:
            return []
        here = np.concatenate(self.shape.rows())
        scores_BTO = torch.cat(engine.loss.scores).cpu().numpy()
        lengths = batch.lengths[here, 0]
        return [
            (int(number), row_TO[:length])
            for number, length, row_TO in zip(batch.examples[here], lengths, scores_BTO, strict=True)
            if number >= 0
        ]

    def _host_batch(self, batch: TaskBatch, one: TaskBatch, parts: np.float32) -> HostBatch:
        assert one.token_targets is not None, "rows of such a task have them"
        made: HostBatch = self.objective.batch(
            one.tokens, one.lm_weights * parts, one.lengths, one.seconds, one.token_targets * parts
        )
        return made


def refused(answered: Answered, threshold: float) -> NDArray[Any]:
    """[N], what was found, and nothing where that is likelier by more than `threshold`."""
    if answered.null_gap is None:
        return answered.found
    return np.where(answered.null_gap > threshold, "", answered.found)


def best_threshold(task: Task, rows: TokenRows, answered: Answered) -> float:
    """The threshold with the highest value of the task's first metric; of equal ones the lowest."""
    assert answered.null_gap is not None, "a span has one"
    metric, gold = task.metrics[0], task.gold(rows.examples)
    parts_N2, nothing_N2 = (parts(metric, gold, found) for found in (answered.found, np.full_like(answered.found, "")))
    order = np.argsort(answered.null_gap, kind="stable")
    # of the examples in order of their gap, those up to one are answered and the others are refused
    value = np.concatenate([[0.0], np.cumsum(parts_N2[order, 0])])
    value += nothing_N2[:, 0].sum() - np.concatenate([[0.0], np.cumsum(nothing_N2[order, 0])])
    gaps = answered.null_gap[order]
    value[1:-1][gaps[1:] == gaps[:-1]] = -np.inf  # of equal gaps no threshold answers some and refuses others
    best = int(value.argmax())
    gap = gaps[max(0, best - 1)] - (best == 0)
    return float(gap) if np.isfinite(gap) else 0.0  # a context without a word has no answer at any threshold


class WrittenScorer(TaskScorer):
    """The loss is that of the targets, as in training; texts are written by task.decoding."""

    def _prepare(self, limit: int) -> tuple[int, int]:
        stacks = self.config.model.stacks
        self.objective = SourceToTarget(stacks, self.tokenizer.pad_id, limit, self.multiple)
        limits = text_limits(self.task, self.settings, self.tokenizer, limit, stacks)
        self.sampling = sampling_of(self.settings, self.config.model, limits[1])
        return limits

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        rows = self._rows(split)
        examples = rows.examples if whole else capped(rows.examples, self.settings.decoded_examples)
        number_of = {example.id: number for number, example in enumerate(rows.examples)}
        found = self._written(engine, rows, [number_of[example.id] for example in examples])
        scores = score_examples(self.task, examples, found)
        record = self._record(split, scores, self._loss(engine, rows), step, tokens)
        if "bleu" in self.task.metrics:
            record = replace(record, signature=signature(len(one.targets) for one in examples if one.targets))
        return record, found

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        rows = self._rows(split)
        return self._written(engine, rows, range(len(rows))), self._loss(engine, rows)

    def flops_per_token(self) -> int:
        rows = self._rows("train")
        average = (round(float(part.mean())) for part in (rows.lengths, rows.target_lengths))
        source, target = (max(1, one) for one in average)
        lengths = (source, target) if self.objective.stacks == 2 else (source + target,)
        return flops_per_token(self.config.model, self.vocab_size, target / sum(lengths), lengths=lengths)

    def fed(self, batch: TaskBatch) -> int:
        return int(batch.lengths.sum()) + batch.counted

    def _rows(self, split: str) -> TargetRows:
        rows = self.splits[split]
        assert isinstance(rows, TargetRows), "such a task has no others"
        return rows

    def _loss(self, engine: Engine, rows: TargetRows) -> float:
        """Nats per token of the targets; 0 where none is known."""
        total, count = 0.0, 0
        for batch in batches_by_length(rows, self.config.train.global_batch, self.multiple):
            total += engine.evaluate(self.micro_batches(batch)) * batch.counted
            count += batch.counted
        return total / max(1, count)

    def _written(self, engine: Engine, rows: TargetRows, numbers: Sequence[int]) -> NDArray[Any]:
        """[N], the texts of these examples in this order, alike on all ranks."""
        engine.progress("evaluation")
        model = of_engine(engine, self.config)
        order = sorted(range(len(numbers)), key=lambda place: -int(rows.lengths[numbers[place], 0]))
        here = order[self.groups.rank :: self.groups.world]

        def write_here() -> list[str]:
            texts: list[str] = []
            for start in range(0, len(here), PROMPTS):
                engine.progress("evaluation")
                sources = [rows.source_of(numbers[place]) for place in here[start : start + PROMPTS]]
                texts += write_targets(model, self.tokenizer, sources, self.sampling, lock=engine.sender.lock)
            return texts

        texts = self.groups.agree(write_here)  # what is not finite for some examples is said on all ranks
        found = [""] * len(numbers)
        for places, theirs in self.groups.gather((here, texts)):
            for place, text in zip(places, theirs, strict=True):
                found[place] = text
        return objects(found)

    def _host_batch(self, batch: TaskBatch, one: TaskBatch, parts: np.float32) -> HostBatch:
        assert batch.target_lengths is not None, "rows of such a task have them"
        assert one.target_lengths is not None, "as the whole batch has"
        assert one.target_tokens is not None, "as the whole batch has"
        positions = self.objective.positions(batch.lengths[:, 0], batch.target_lengths)
        tokens_BS, target_BT = one.tokens[:, 0].astype(np.int64), one.target_tokens
        texts = Texts(tokens_BS, one.lengths[:, 0], target_BT, one.target_lengths)
        weight_B = (one.examples >= 0) * (parts / np.float32(max(1, batch.counted)))
        made: HostBatch = self.objective.batch(texts, positions, weight_B)
        return made


def write_targets(
    model: DenseModel,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    sampling: Sampling,
    name: str = "model",
    lock: AbstractContextManager[object] | None = None,
) -> list[str]:
    """The texts that a model writes of `sources`, token ids; name and lock are those of `write`."""
    return [tokenizer.decode(ids).strip() for ids in write(model, tokenizer, sources, sampling, name=name, lock=lock)]
