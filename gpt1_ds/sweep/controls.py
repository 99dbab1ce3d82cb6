"""controls.json of a fine-tuning study: of each of its tasks, the scores and answers of tasks/controls.py, and the
right answers, which comparisons need.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpt1_ds.common.files import write_json
from gpt1_ds.common.log import say
from gpt1_ds.common.text import duration
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep
from gpt1_ds.tasks.base import ControlAnswers
from gpt1_ds.tasks.metrics import control_scores
from gpt1_ds.tasks.reading import TaskData, read_task

FILE = "controls.json"
FORMAT = 2  # an entry holds answers, too


def write_controls(sweep: FinetuningSweep) -> None:
    """Fit the controls of every task of the table whose examples are not those that the file knows.

    Raises DataError when scikit-learn is not installed.
    """
    file = sweep.folder / FILE
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    sections = {trial.task: trial.section for trial in sweep.trials if trial.task in sweep.study.columns}
    for name, section in sections.items():
        data = read_task(section)
        identity = _identity(data)
        if known.get(name, {}).get("examples") == identity:
            continue
        begun = time.monotonic()
        try:
            answers = list(data.task.controls(data.splits))
        except ValueError as error:
            say(f"{name}: without controls: {error}")
            continue
        scores = [asdict(score) for score in control_scores(data.task, answers)]
        known[name] = {"examples": identity, "labels": data.task.labels, "scores": scores, "answers": _splits(answers)}
        write_json(file, known)
        say(f"{name}: majority and bag of words for comparison  {duration(time.monotonic() - begun)}")


def _splits(answers: Sequence[ControlAnswers]) -> dict[str, Any]:
    """Split -> {ids, gold, controls: name -> answers}, as lists."""
    splits: dict[str, Any] = {}
    for one in answers:
        split = splits.setdefault(one.split, {"ids": one.ids, "gold": one.gold.tolist(), "controls": {}})
        split["controls"][one.control] = one.found.tolist()
    return splits


def _identity(data: TaskData) -> str:
    """Hex sha256 of the task and all its examples, and of what an entry holds."""
    digest = hashlib.sha256(repr((FORMAT, data.task)).encode())
    for split, examples in sorted(data.splits.items()):
        digest.update(repr((split, examples)).encode())
    return digest.hexdigest()
