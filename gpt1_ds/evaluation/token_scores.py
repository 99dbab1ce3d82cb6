"""Scores of tasks whose head reads every token: answers that are spans of a text, and tags of words.

Shapes: N examples, R rows of them (long texts have several), B rows and T positions of a batch, O outputs of a token.
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
from gpt1_ds.tasks.batches import TaskBatch, batches_by_length
from gpt1_ds.tasks.token_metrics import parts
from gpt1_ds.tasks.token_rows import Answered, TokenRows
from gpt1_ds.tracking.record import TaskRecord

DEV = "dev"


class TokenScorer(TaskScorer):
    """Scores spans and tags. A question that may have no answer is refused if having none is likelier than the best
    span by more than a threshold. The threshold is the best one on dev.
    """

    threshold = 0.0  # logits
    _chosen_at: int | None = None  # the step whose weights the threshold was chosen for

    def measure(
        self, engine: Engine, split: str, step: int, tokens: int, whole: bool = True
    ) -> tuple[TaskRecord, NDArray[Any]]:
        answers, loss = self._answers(engine, split)
        more: dict[str, float] = {}
        if self.task.has_unanswerable:
            if split != DEV and self._chosen_at != step:
                self._choose_threshold(self._answers(engine, DEV)[0], step)
            elif split == DEV:
                self._choose_threshold(answers, step)
                more["null_threshold"] = self.threshold
        predictions = with_refusals(self.task, answers, self.threshold)
        return self._record(split, self._metrics(split, predictions), loss, step, tokens, **more), predictions

    def predict(self, engine: Engine, split: str) -> tuple[NDArray[Any], float]:
        answers, loss = self._answers(engine, split)
        return with_refusals(self.task, answers, self.threshold), loss

    def _choose_threshold(self, answers_on_dev: Answered, step: int) -> None:
        self.threshold, self._chosen_at = best_threshold(self.task, self._rows(DEV), answers_on_dev), step

    def _rows(self, split: str) -> TokenRows:
        rows = self.splits[split]
        assert isinstance(rows, TokenRows), "such a task has no others"
        return rows

    def _answers(self, engine: Engine, split: str) -> tuple[Answered, float]:
        """Returns (the likeliest answer of each example, mean loss), the same on all ranks."""
        rows = self._rows(split)
        total, count, local = 0.0, 0, []
        for batch in batches_by_length(rows, self.config.train.global_batch, self.multiple):
            loss = engine.evaluate(self.micro_batches(batch))
            total += loss * batch.counted
            count += batch.counted
            local += self._token_scores(engine, batch)
        scores: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(rows)
        for number, row_TO in (pair for rank in self.groups.gather(local) for pair in rank):
            scores[number] = row_TO
        return rows.answers(scores), total / max(1, count)

    def _token_scores(self, engine: Engine, batch: TaskBatch) -> list[tuple[int, NDArray[np.float32]]]:
        """Returns (number of a row, scores of its tokens [T, O]) of each row of the batch that this rank has."""
        if self.groups.tensor_rank or not self.groups.is_last_stage:
            return []
        local_rows = np.concatenate(self.shape.rows())
        scores_BTO = torch.cat(engine.loss.scores).cpu().numpy()
        lengths = batch.lengths[local_rows, 0]
        return [
            (int(number), row_TO[:length])
            for number, length, row_TO in zip(batch.examples[local_rows], lengths, scores_BTO, strict=True)
            if number >= 0
        ]

    def _host_batch(self, batch: TaskBatch, micro: TaskBatch, parts: np.float32) -> HostBatch:
        assert micro.token_targets is not None, "rows of such a task have them"
        host_batch: HostBatch = self.objective.batch(
            micro.tokens, micro.lm_weights * parts, micro.lengths, micro.seconds, micro.token_targets * parts
        )
        return host_batch


def with_refusals(task: Task, answers: Answered, threshold: float) -> NDArray[Any]:
    """Returns [N], the answers. Where questions of the task may have none, an answer is empty if having none is
    likelier by more than `threshold`.
    """
    if not task.has_unanswerable:
        return answers.found
    assert answers.null_gap is not None, "a span has one"
    return np.where(answers.null_gap > threshold, "", answers.found)


def best_threshold(task: Task, rows: TokenRows, answers: Answered) -> float:
    """Returns the threshold with the highest value of the task's first metric; of equally good ones the lowest."""
    assert answers.null_gap is not None, "a span has one"
    metric, gold = task.metrics[0], task.gold(rows.examples)
    nothing = np.full_like(answers.found, "")
    answered_N2, refused_N2 = (parts(metric, gold, predictions) for predictions in (answers.found, nothing))
    order = np.argsort(answers.null_gap, kind="stable")
    # value[i]: the i examples with the smallest gaps are answered, the others are refused
    value = np.concatenate([[0.0], np.cumsum(answered_N2[order, 0])])
    value += refused_N2[:, 0].sum() - np.concatenate([[0.0], np.cumsum(refused_N2[order, 0])])
    gaps = answers.null_gap[order]
    value[1:-1][gaps[1:] == gaps[:-1]] = -np.inf  # of equal gaps no threshold answers some and refuses others
    best = int(value.argmax())
    gap = gaps[max(0, best - 1)] - (best == 0)
    return float(gap) if np.isfinite(gap) else 0.0  # a context without a word has no answer at any threshold
