"""Predictions as the TSV files that GLUE's server takes: `index`, `prediction`, label names, scores with 3 places."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.registry import SPECS

FOLDER = "predictions"  # of a run folder


def file_name(task: str, split: str) -> str:
    """`CoLA.tsv`, `MNLI-mm.tsv`, ...; `NAME-SPLIT.tsv` for what GLUE has no file for."""
    official = SPECS[task].submission if task in SPECS else {}
    return official.get(split, f"{task}-{split}.tsv")


def read_submission(file: Path) -> dict[str, str]:
    """Example's id -> its prediction, a label's name or a score."""
    lines = file.read_text().splitlines()[1:]
    return dict(line.rsplit("\t", 1) for line in lines)


def write_submission(
    task: Task,
    ids: Sequence[str],
    predictions: NDArray[np.int64] | NDArray[np.float64],
    folder: Path,
    split: str = "test",
) -> Path:
    """Write `predictions` [N], class or choice numbers or scores, of the examples with these `ids`; returns the file.

    A score outside of the task's range is brought to its border; of sentences it is the cosine. The index is the
    example's id, which in GLUE's test files is the row's number. Raises DataError when two examples have one id, or an
    id or label holds a tab.
    """
    assert len(predictions) == len(ids), f"{len(predictions)} predictions for {len(ids)} examples"
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{task.name} {split}: two rows have the same id; set task.columns.id to a column of unique ones"
        )
    lines = ["index\tprediction"]
    for identity, prediction in zip(ids, predictions.tolist(), strict=True):
        shown = task.in_words(prediction)
        if any(mark in identity + shown for mark in "\t\n\r"):
            raise DataError(
                f"{task.name} {split}: id {identity!r} or label {shown!r} holds a tab or a line end; rename it"
            )
        lines.append(f"{identity}\t{shown}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(task.name, split)
    write_atomic(path, "\n".join(lines) + "\n")
    return path
