"""Scores of predictions, by scikit-learn and scipy, and predictions as the TSV files that GLUE's server takes.

The paper reports accuracy, but F1 for MRPC and QQP, Matthews' correlation for CoLA and Pearson's for STS-B. Where every
label is of one class Matthews' correlation is 0.0, by convention. Where every score, or every prediction, is the same,
Pearson's and Spearman's are not defined: they are None. So is F1 of two classes, 2 TP / (2 TP + FP + FN), where class 1
is neither there nor predicted.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.tasks.base import NO_LABEL, ControlAnswers, Numbers, Task
from gpt1_ds.tasks.encoding import Encoded
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.registry import SPECS
from gpt1_ds.tasks.token_metrics import of_sums, parts
from gpt1_ds.tasks.token_rows import TokenRows
from gpt1_ds.tasks.written_text import LIBRARY_OF

FOLDER = "predictions"  # of a run folder
LIBRARIES = ("sklearn", "scipy")  # of the scores of classes and numbers


def submission_name(task: str, split: str, ending: str = "tsv") -> str:
    """Returns `CoLA.tsv`, `MNLI-mm.tsv`, ...; `NAME-SPLIT.tsv` for what GLUE has no file for; answers of SQuAD are
    JSON.
    """
    official = SPECS[task].submission if task in SPECS else {}
    return official.get(split, f"{task}-{split}.{ending}")


def read_submission(file: Path) -> dict[str, str]:
    """Returns example's id -> its prediction, a label's name, a score, or a text. Raises DataError for a damaged
    file.
    """
    try:
        if file.suffix == ".json":
            return dict(json.loads(file.read_text(encoding="utf-8")))
        text = file.read_text(encoding="utf-8").removesuffix("\n")
        lines = text.split("\n")[1:]  # an id may hold other ends of lines, like U+2028
        return dict(line.rsplit("\t", 1) for line in lines)
    except ValueError:
        raise DataError(f"{file}: damaged; remove the run's folder, and its study makes it again") from None


def write_submission(
    task: Task,
    ids: Sequence[str],
    predictions: Numbers,
    folder: Path,
    split: str = "test",
) -> Path:
    """Writes `predictions` [N], class or choice numbers or scores, of the examples with these `ids`; returns the file.

    A score outside of the task's range is brought to its border; of sentences it is the cosine. The index is the
    example's id, which in GLUE's test files is the row's number; tasks/reading.py refuses ids and labels with a tab.
    Raises DataError when two examples have one id.
    """
    assert len(predictions) == len(ids), f"{len(predictions)} predictions for {len(ids)} examples"
    if len(set(ids)) < len(ids):
        raise DataError(
            f"{task.name} {split}: two rows have the same id; set task.columns.id to a column of unique ones"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / submission_name(task.name, split, task.submission)
    if task.submission == "json":  # an answer may hold any letter
        found = dict(zip(ids, map(task.format_prediction, predictions.tolist()), strict=True))
        write_atomic(path, json.dumps(found, ensure_ascii=False, indent=0) + "\n")
        return path
    lines = ["index\tprediction"]
    lines += [f"{name}\t{task.format_prediction(found)}" for name, found in zip(ids, predictions.tolist(), strict=True)]
    write_atomic(path, "\n".join(lines) + "\n")
    return path


def check_libraries(task: Task) -> None:
    """What scores `task` is installed: training would end at the first scores. Raises DataError."""
    of_answers = [LIBRARY_OF[metric] for metric in task.metrics if metric in LIBRARY_OF]
    needed = of_answers if task.reads_tokens or task.writes_text else LIBRARIES
    if missing := sorted({name for name in needed if find_spec(name) is None}):
        names = " and ".join(missing).replace("sklearn", "scikit-learn")
        raise DataError(f"{task.name}: its scores need {names}; pip install 'gpt1-ds[finetune]'")


@dataclass(frozen=True)
class TaskScores:
    """`values` by the metric's name, of a group as `accuracy_middle`; None: not defined. `warnings` say why."""

    values: dict[str, float | None]
    warnings: tuple[str, ...]


def score(task: Task, encoded: Encoded, predictions: Numbers) -> TaskScores:
    """Returns the metrics of `task` over the labelled examples, and its first one for each group where there are
    several.

    `predictions` [N] are class or choice numbers, or scores for a regression, in the order of the examples.
    Raises DataError when scikit-learn or scipy is not installed, or when no example has a label.
    """
    if isinstance(encoded, TokenRows):
        return score_examples(task, encoded.examples, predictions)
    assert len(predictions) == len(encoded), f"{len(predictions)} predictions for {len(encoded)} examples"
    gold: Numbers = encoded.scores if task.has_scores else encoded.labels
    known = np.isfinite(encoded.scores) if task.has_scores else encoded.labels != NO_LABEL
    return _score(task, gold, known, encoded.groups, predictions)


def score_examples(task: Task, examples: Sequence[Example], predictions: Numbers) -> TaskScores:
    """`score` of what is found of each of these examples [N]: texts, or tuples of tags."""
    labelled = np.array([example.is_labelled for example in examples])
    return _score(task, task.gold(examples), labelled, [example.group for example in examples], predictions)


def _score(
    task: Task, gold: Numbers, known: NDArray[np.bool_], groups_N: Sequence[str], predictions: Numbers
) -> TaskScores:
    if not known.any():
        raise DataError(f"{task.name}: no example has a label, so nothing can be scored")
    groups = np.array(groups_N)
    parts = [("", known, task.metrics)]
    names = sorted(set(groups_N) - {""})
    if len(names) > 1 and not task.groups_are_questions:
        parts += [(f"_{name}", known & (groups == name), task.group_metrics) for name in names]
    values: dict[str, float | None] = {}
    notes: list[str] = []
    for ending, rows, metrics in parts:
        if not rows.any():
            continue
        for metric in metrics:
            value = values[metric + ending] = measure(
                metric, gold[rows], predictions[rows], len(task.labels), groups[rows]
            )
            if gold.dtype == object:
                if value is None:
                    notes.append(f"{task.name}: {metric}{ending} is null: no entity is there, and none is found")
            elif value is None or (metric == "matthews" and len(np.unique(gold[rows])) == 1):
                shown = "null" if value is None else value
                same = "label" if len(np.unique(gold[rows])) == 1 else "prediction"
                notes.append(f"{task.name}: {metric}{ending} is {shown}: every {same} is the same")
    return TaskScores(values, tuple(notes))


def measure(
    metric: str, gold: Numbers, predictions: Numbers, classes: int = 0, groups: Sequence[str] | NDArray[np.str_] = ()
) -> float | None:
    """Returns one metric of predictions [N] against gold [N]. None where it is not defined, and for fewer than two
    scores.

    F1 is that of class 1 where the task has two `classes`, else the mean over those that occur; no other metric needs
    them. The exact match of classes is the share of questions, which are `groups` [N] of examples, of which all are
    right (Khashabi et al. 2018).
    """
    if gold.dtype == object:
        return of_sums(metric, parts(metric, gold, predictions).sum(axis=0))
    if metric in ("pearson", "spearman"):
        if len(np.unique(gold)) < 2 or len(np.unique(predictions)) < 2:
            return None
        correlate = getattr(_libraries()[1], f"{metric}r")
        value = float(correlate(gold, predictions).statistic)
        return value if np.isfinite(value) else None
    measures = _libraries()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that nobody predicts, or that nobody has
        if metric == "accuracy":
            return float(measures.accuracy_score(gold, predictions))
        if metric == "exact_match":
            if not len(groups):  # a file of an older version has none
                return None
            _, question_N = np.unique(np.asarray(groups), return_inverse=True)
            return float((np.bincount(question_N, gold != predictions) == 0).mean())
        if metric == "matthews":
            return float(measures.matthews_corrcoef(gold, predictions))
        assert classes > 1, "F1 has another definition for two classes than for more"
        average = "binary" if classes == 2 else "macro"
        value = float(measures.f1_score(gold, predictions, average=average, zero_division=np.nan))
        return value if np.isfinite(value) else None


@dataclass(frozen=True)
class ControlScore:
    """One metric of one split, as eval.json has it: not x 100; None: not defined."""

    control: str
    split: str
    metric: str
    value: float | None


def control_scores(task: Task, answers: Iterable[ControlAnswers]) -> Iterator[ControlScore]:
    """Yields the task's metrics of what controls answer."""
    for one in answers:
        for metric in task.metrics:
            value = measure(metric, one.gold, one.found, len(task.labels), one.groups)
            yield ControlScore(one.control, one.split, metric, value)


def _libraries() -> tuple[Any, Any]:
    try:
        from scipy import stats
        from sklearn import metrics
    except ImportError:
        raise DataError("task metrics need scikit-learn and scipy; pip install 'gpt1-ds[finetune]'") from None
    return metrics, stats
