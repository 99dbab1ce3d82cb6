"""metrics.jsonl as a table for notebooks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.tracking.record import read_records

if TYPE_CHECKING:
    import pandas


def read_metrics(run: str | os.PathLike[str]) -> pandas.DataFrame:
    """A row per line of the run folder's metrics.jsonl, in the order of its writing. `kind` is train, eval or task;
    a task's scores are columns by their names; what a kind does not have is NaN. Units are those of the file.

    Raises DataError for a folder that is no run folder, UserError where pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UserError("pandas is not installed: pip install 'gpt1-ds[notebooks]'") from None
    run_dir = RunDir(Path(run))
    if not run_dir.config.is_file():
        raise DataError(f"{run}: no such run folder; name one that `gpt1-ds pretrain` or gpt1_ds.train made")
    rows = []
    for line in read_records(run_dir.metrics):
        scores = line.pop("metrics", {})
        rows.append({**line, **scores})
    return pandas.DataFrame(rows, columns=None if rows else ["kind", "step"])
