"""`finetune` with task.form=frozen: a linear model of the vectors that a pre-trained model makes, which stays as it is.

Features of one text are its vector u, of two u, v, |u - v| and u v (Conneau et al. 2017, InferSent), standardised by
train. What a pre-trained model knows without being trained further; it needs no gradient and no rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.checkpoint.restore import same_manifest
from gpt1_ds.common import log
from gpt1_ds.common.files import write_atomic, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.embed import Embedder, Float32s, shared_vectors
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.tasks.controls import Texts, fit_linear, text_rows
from gpt1_ds.tasks.example import hash_examples
from gpt1_ds.tasks.metrics import FOLDER, measure, write_submission
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tracking.record import Entry, merge
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.run_folder import locked_run_dir
from gpt1_ds.training.state import DONE, Outcome


def fit_frozen(config: Config) -> Outcome:
    """Fits and scores on this rank, which makes its part of the vectors. Rank 0 writes eval.json and predictions/.
    There are no steps.
    """
    assert config.task is not None, "finetune_config checks it"
    assert config.checkpoint.init_from is not None, "finetune_config checks it"
    run_dir, task, source = run_folder(config), config.task, Path(config.checkpoint.init_from)
    with distributed_session(config) as groups, locked_run_dir(run_dir, config, groups):
        groups.on_rank_0(lambda: _prepare(run_dir, config))
        data = groups.agree(lambda: read_task(task))
        checkpoint = groups.agree(lambda: find_checkpoint(source))
        same_manifest(groups, checkpoint)
        embedder = groups.agree(lambda: Embedder(load_checkpoint(checkpoint)))
        vectors = shared_vectors(embedder, texts_of(data), groups)
        groups.on_rank_0(lambda: _fit(data, vectors, run_dir))
    return Outcome(DONE, 0)


def _prepare(run_dir: RunDir, config: Config) -> None:
    run_dir.done.unlink(missing_ok=True)
    write_atomic(run_dir.config, to_yaml(config))
    run_dir.add_event("started", step=0)


def texts_of(data: TaskData) -> Iterator[str]:
    """Returns every text of a task, that of a pair by itself."""
    return (text for examples in data.splits.values() for row in text_rows(examples) for text in row if text)


@dataclass(frozen=True)
class LinearScores:
    """What a linear model of the vectors says of the labelled examples of a split, and how good that is."""

    split: str
    ids: list[str]
    found: NDArray[Any]  # [N]
    metrics: dict[str, float | None]  # by name, the task's first one first


def linear_scores(data: TaskData, vectors: dict[str, Float32s]) -> Iterator[LinearScores]:
    """Fits on train and yields the scores of every other split with labels. Raises DataError when scikit-learn is not
    installed, ValueError for labels of one class.
    """
    train = [row for row in data.splits["train"] if row.is_labelled]
    predict = fit_linear(data.task, train, FrozenFeatures(vectors, text_rows(train)))
    for split, examples in sorted(data.splits.items()):
        rows = [row for row in examples if row.is_labelled]
        if split == "train" or not rows:
            continue
        found, gold = predict(rows), data.task.gold(rows)
        classes, groups = len(data.task.labels), [row.group for row in rows]
        metrics = {metric: measure(metric, gold, found, classes, groups) for metric in data.task.metrics}
        yield LinearScores(split, [row.id for row in rows], found, metrics)


def _fit(data: TaskData, vectors: dict[str, Float32s], run_dir: RunDir) -> None:
    for note in data.notes:
        log.say(note)
    entries: list[Entry] = []
    for one in linear_scores(data, vectors):
        split, metrics = one.split, one.metrics
        shown = hash_examples(data.splits[split])
        entries.append({"task": data.task.name, "split": split, "step": 0, "metrics": metrics, "data": shown})
        write_submission(data.task, one.ids, one.found, run_dir.path / FOLDER, split)
        shown = ", ".join(f"{name} {'not defined' if x is None else f'{x:.4f}'}" for name, x in metrics.items())
        log.say(f"{data.task.name} {split}, frozen features: {shown}")
    merge(run_dir.evaluation, *entries, first=True)
    write_json(run_dir.done, {"step": 0})
    run_dir.add_event("stopped", step=0, reason="done", seconds=0.0)


class FrozenFeatures:
    """Makes of pairs of texts [N] float32 [N, D], or [N, 4 D] where there are first texts; standardised by `train`."""

    def __init__(self, vectors: dict[str, Float32s], train: Texts) -> None:
        self.vectors = vectors
        self.two = any(first for first, _ in train)
        self.mean, self.scale = np.zeros(1, np.float32), np.ones(1, np.float32)
        table = self(train)
        self.mean, self.scale = table.mean(axis=0), np.maximum(table.std(axis=0), 1e-6)

    def __call__(self, rows: Iterable[tuple[str, str]]) -> NDArray[np.float32]:
        firsts, seconds = zip(*rows, strict=True)
        table = self._of(seconds)
        if self.two:
            first = self._of(firsts)
            table = np.concatenate([first, table, np.abs(first - table), first * table], axis=1)
        scaled: NDArray[np.float32] = (table - self.mean) / self.scale
        return scaled

    def _of(self, texts: Iterable[str]) -> Float32s:
        """Returns [N, D]; of no text zeros."""
        nothing = np.zeros_like(next(iter(self.vectors.values())))
        return np.stack([self.vectors[text] if text else nothing for text in texts])
