"""Scores of tasks whose answers the model writes.

Whatever layout the engine has, every rank gathers the whole model in fp32 and writes its part of the texts. So all
ranks work, a pipeline's too, and the texts are those of one process.

Shapes: N examples, B rows of a micro-batch, S and T positions of sources and targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.checkpoint.whole import of_engine
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.engine.base import Engine
from gpt1_ds.evaluation.decoding import PROMPTS, write
from gpt1_ds.evaluation.sampling import Sampling, sampling_of
from gpt1_ds.evaluation.task_scores import TaskScorer
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import SourceToTarget, Texts
from gpt1_ds.tasks.batches import TaskBatch, batches_by_length
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.metrics import score_examples
from gpt1_ds.tasks.target_rows import TargetRows
from gpt1_ds.tasks.text import text_limits
from gpt1_ds.tasks.token_metrics import objects
from gpt1_ds.tasks.written_text import signature
from gpt1_ds.tracking.record import TaskRecord


class WrittenScorer(TaskScorer):
    """Scores the texts that a model writes as task.decoding says. The loss is that of the targets, as in training."""

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
        written = self._write(engine, rows, [number_of[example.id] for example in examples])
        scores = score_examples(self.task, examples, written)
        record = self._record(split, scores, self._loss(engine, rows), step, tokens)
        if "bleu" in self.task.metrics:
            record = replace(
                record, signature=signature(len(example.targets) for example in examples if example.targets)
            )
        return record, written

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        rows = self._rows(split)
        return self._write(engine, rows, range(len(rows))), self._loss(engine, rows)

    def flops_per_token(self) -> int:
        rows = self._rows("train")
        source, target = (max(1, round(float(lengths.mean()))) for lengths in (rows.lengths, rows.target_lengths))
        lengths = (source, target) if self.objective.stacks == 2 else (source + target,)
        return flops_per_token(self.config.model, self.vocab_size, target / sum(lengths), lengths=lengths)

    def fed(self, batch: TaskBatch) -> int:
        return int(batch.lengths.sum()) + batch.counted

    def _rows(self, split: str) -> TargetRows:
        rows = self.splits[split]
        assert isinstance(rows, TargetRows), "such a task has no others"
        return rows

    def _loss(self, engine: Engine, rows: TargetRows) -> float:
        """Returns the nats per token of the targets; 0 where no target is known."""
        total, count = 0.0, 0
        for batch in batches_by_length(rows, self.config.train.global_batch, self.multiple):
            total += engine.evaluate(self.micro_batches(batch)) * batch.counted
            count += batch.counted
        return total / max(1, count)

    def _write(self, engine: Engine, rows: TargetRows, numbers: Sequence[int]) -> NDArray[Any]:
        """Returns [N], the texts of these examples in this order, the same on all ranks."""
        engine.progress("evaluation")
        model = of_engine(engine, self.config)
        order = sorted(range(len(numbers)), key=lambda place: -int(rows.lengths[numbers[place], 0]))
        local = order[self.groups.rank :: self.groups.world]

        def write_local() -> list[str]:
            texts: list[str] = []
            for start in range(0, len(local), PROMPTS):
                engine.progress("evaluation")
                sources = [rows.source_of(numbers[place]) for place in local[start : start + PROMPTS]]
                texts += write_targets(model, self.tokenizer, sources, self.sampling, lock=engine.sender.lock)
            return texts

        texts = self.groups.agree(write_local)  # what is not finite for some examples is said on all ranks
        written = [""] * len(numbers)
        for places, texts_of_rank in self.groups.gather((local, texts)):
            for place, text in zip(places, texts_of_rank, strict=True):
                written[place] = text
        return objects(written)

    def _host_batch(self, batch: TaskBatch, micro: TaskBatch, parts: np.float32) -> HostBatch:
        assert batch.target_lengths is not None, "rows of such a task have them"
        assert micro.target_lengths is not None, "as the whole batch has"
        assert micro.target_tokens is not None, "as the whole batch has"
        positions = self.objective.positions(batch.lengths[:, 0], batch.target_lengths)
        tokens_BS, target_BT = micro.tokens[:, 0].astype(np.int64), micro.target_tokens
        texts = Texts(tokens_BS, micro.lengths[:, 0], target_BT, micro.target_lengths)
        weight_B = (micro.examples >= 0) * (parts / np.float32(max(1, batch.counted)))
        host_batch: HostBatch = self.objective.batch(texts, positions, weight_B)
        return host_batch


def write_targets(
    model: DenseModel,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    sampling: Sampling,
    name: str = "model",
    lock: AbstractContextManager[object] | None = None,
) -> list[str]:
    """Returns the texts that a model writes for `sources`, token ids; name and lock are those of `write`."""
    return [tokenizer.decode(ids).strip() for ids in write(model, tokenizer, sources, sampling, name=name, lock=lock)]
