"""Scores of a task whose tokens are read one by one: spans and tags.

Shapes: N examples, R rows of them, T positions of a batch, O outputs of a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.engine.base import Engine
from gpt1_ds.evaluation.task_scores import TaskScorer
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.batches import TaskBatch, batches_in_order
from gpt1_ds.tasks.token_metrics import parts
from gpt1_ds.tasks.token_rows import Answered, TokenRows
from gpt1_ds.tracking.record import TaskRecord

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
        return self._record(split, found, loss, step, tokens, **more), found

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
        for batch in batches_in_order(rows, self.config.train.global_batch, True, self.multiple):
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
        scores_BTO = torch.cat(engine.scores).cpu().numpy()
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
    best = int(value.argmax())
    gap = answered.null_gap[order[max(0, best - 1)]] - (best == 0)
    return float(gap) if np.isfinite(gap) else 0.0  # a context without a word has no answer at any threshold
