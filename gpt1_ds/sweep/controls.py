"""controls.json of a fine-tuning study: of each of its tasks, the scores of tasks/controls.py."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from typing import Any

from gpt1_ds.common.files import write_json
from gpt1_ds.common.log import say
from gpt1_ds.common.units import duration
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep
from gpt1_ds.tasks.controls import control_scores
from gpt1_ds.tasks.reading import TaskData, read_task

FILE = "controls.json"


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
            scores = [asdict(score) for score in control_scores(data)]
        except ValueError as error:
            say(f"{name}: without controls: {error}")
            continue
        known[name] = {"examples": identity, "scores": scores}
        write_json(file, known)
        say(f"{name}: majority and bag of words for comparison  {duration(time.monotonic() - begun)}")


def _identity(data: TaskData) -> str:
    """Hex sha256 of the task and all its examples."""
    digest = hashlib.sha256(repr(data.task).encode())
    for split, examples in sorted(data.splits.items()):
        digest.update(repr((split, examples)).encode())
    return digest.hexdigest()
