"""eval.json: a list of {task, split, step, metrics}.

Controls of a task (tasks/controls.py) have the task `control/NAME/TASK` and step 0: they are of no checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import is_there, write_json
from gpt1_ds.common.lock import one_at_a_time
from gpt1_ds.common.rundir import check_types
from gpt1_ds.tracking.record import OPTIONAL, TaskRecord

CONTROL = "control/"  # before the names of a control and its task
Entry = dict[str, Any]
KINDS = {"task": "text", "split": "text", "step": "count", "metrics": "numbers"}


def merge(path: Path, entry: Entry) -> None:
    """Put one result into an eval.json list, in place of an older one for the same task, split and step."""
    with one_at_a_time(path.parent):
        write_json(path, [*(e for e in read_entries(path) if entry_key(e) != entry_key(entry)), entry])


def write_scores(record: TaskRecord, path: Path) -> None:
    """Merge a task's scores into an eval.json."""
    values = {key: value for key, value in asdict(record).items() if key not in ("kind", "tokens")}
    merge(path, {key: value for key, value in values.items() if key not in OPTIONAL or value is not None})


def read_entries(path: Path | None) -> list[Entry]:
    """The results in an eval.json; none where there is no file. Raises DataError for another file."""
    if path is None or not is_there(path):
        return []
    try:
        entries: Any = json.loads(path.read_text())
    except (ValueError, RecursionError):
        entries = {}
    if not isinstance(entries, list):
        raise DataError(f"{path}: not a list of results; remove it and evaluate again, or choose another --out")
    for number, entry in enumerate(entries, 1):
        check_types(path, f"result {number}", entry, KINDS)
    results: list[Entry] = entries
    return results


def of_models(entries: Iterable[Entry]) -> list[Entry]:
    """The results of checkpoints, without the controls beside them."""
    return [entry for entry in entries if not entry["task"].startswith(CONTROL)]


def entry_key(entry: Entry) -> tuple[str, str, int]:
    return entry["task"], entry["split"], entry["step"]
