"""What a scaling study's folder tells: results.csv, fit.json, predictions.csv and downstream.csv."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.report.tidy_csv import Row, read_csv

OUTCOMES = ("done", "diverged", "dominated", "failed", "running", "waiting")
CONVENTIONS = {
    "matrices_head": "matrices and head (no embedding tables)",
    "all": "all parameters",
    "transformer": "transformer blocks only",
}
WHOLE = ("layers", "width", "heads", "context", "vocab_size", "seed", "held_out")
NUMBERS = (
    *WHOLE,
    *("learning_rate", "n_all", "n_matrices_head", "n_transformer", "n", "d", "u", "flops", "loss", "bits_per_byte"),
    *("seconds", "rank_hours"),
)
POSITIVE = ("n", "d", "u", "flops", "loss", "learning_rate")


@dataclass(frozen=True)
class Cell:
    """A row of results.csv; None where the file says nothing."""

    cell: str
    n: float  # parameters in the study's convention
    d: float  # training tokens
    u: float  # unique ones among them
    flops: float  # of its training; 6 N D where the file has none
    loss: float | None  # final held-out loss, nats per token
    outcome: str
    held_out: bool = False
    arm: str = ""
    kind: str = ""
    run: str = ""
    schedule: str = ""
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    context: int | None = None
    vocab_size: int | None = None
    seed: int | None = None
    learning_rate: float | None = None
    n_all: float | None = None
    n_matrices_head: float | None = None
    n_transformer: float | None = None
    bits_per_byte: float | None = None
    seconds: float | None = None
    rank_hours: float | None = None

    @property
    def done(self) -> bool:
        """Whether its loss is that of all its tokens; a cell that ended early has none to compare."""
        return self.outcome == "done" and self.loss is not None

    @property
    def epochs(self) -> float:
        return self.d / self.u

    @property
    def final_loss(self) -> float:
        assert self.loss is not None, "asked of cells that are done"
        return self.loss


@dataclass(frozen=True)
class Study:
    """A study as far as it has come."""

    folder: Path
    cells: tuple[Cell, ...]
    fit: dict[str, Any] | None  # fit.json
    predictions: dict[str, Row]  # cell -> its row of predictions.csv
    downstream: tuple[Row, ...]
    flops_given: bool  # false: some are 6 N D
    stale: bool  # the fit is of another results.csv

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def done(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.done]

    @property
    def outcomes(self) -> Counter[str]:
        counted = Counter(cell.outcome for cell in self.cells)
        return Counter({outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]})

    @property
    def convention(self) -> str:
        """What N counts, in words."""
        told = str((self.fit or {}).get("convention") or "").removeprefix("n_")
        if told:
            return CONVENTIONS.get(told, told)
        for name, words in CONVENTIONS.items():
            if all(getattr(cell, f"n_{name}") == cell.n for cell in self.cells):
                return words
        return "as given in results.csv (the convention is not recorded)"

    @property
    def schedule(self) -> str:
        told = sorted({cell.schedule for cell in self.cells} - {""})
        return " and ".join(told) if told else "not recorded"

    def run_dir(self, cell: Cell) -> RunDir | None:
        """The cell's run folder, also when the study has been moved; None where there is no metrics.jsonl."""
        places = ([Path(cell.run), self.folder / cell.run] if cell.run else []) + [self.folder / cell.cell]
        return next((RunDir(place) for place in places if (place / "metrics.jsonl").is_file()), None)

    def last_word(self, cell: Cell) -> str:
        """Why a cell ended, by its last event that gives a reason; empty where none does."""
        run = self.run_dir(cell)
        told = [event for event in read_jsonl(run.events) if event.get("reason")] if run else []
        return f"{told[-1]['event']}: {told[-1]['reason']}" if told else ""


def read(folder: Path) -> Study:
    """Raises DataError, each problem a line: no results.csv, one that cannot be read, or none of its cells done."""
    path = folder / "results.csv"
    if not path.is_file():
        raise DataError(f"{path}: missing; `gpt1-ds scaling collect STUDY` writes it")
    rows = read_csv(path, required=("n", "d", "loss"), numbers=NUMBERS, positive=POSITIVE)
    cells = tuple(_cell(row, number) for number, row in enumerate(rows, 1))
    DataError.raise_all(_problems(path, cells))
    fit = _fit(folder / "fit.json")
    predictions = _table(folder / "predictions.csv", ("cell", "predicted", "error_percent"), ("low", "high"))
    return Study(
        folder=folder,
        cells=cells,
        fit=fit,
        predictions={str(row["cell"]): row for row in predictions if row["predicted"] is not None},
        downstream=_table(folder / "downstream.csv", ("cell", "flops", "task", "metric", "value"), ("n", "d")),
        flops_given=all(row.get("flops") is not None for row in rows),
        stale=fit is not None and _is_stale(fit, path),
    )


def _cell(row: Row, number: int) -> Cell:
    told: dict[str, Any] = {key: value for key, value in row.items() if key in Cell.__dataclass_fields__}
    told |= {key: int(told[key]) for key in WHOLE if told.get(key) is not None}
    for key in ("arm", "kind", "run", "schedule"):
        told[key] = told.get(key) or ""
    told["cell"] = told.get("cell") or f"point-{number}"
    told["held_out"] = bool(told.get("held_out"))
    told["u"] = told.get("u") or told["d"]
    told["flops"] = told.get("flops") or 6 * told["n"] * told["d"]
    told["outcome"] = told.get("outcome") or ("waiting" if told["loss"] is None else "done")
    return Cell(**told)


def _problems(path: Path, cells: tuple[Cell, ...]) -> Iterable[str]:
    for name, times in Counter(cell.cell for cell in cells).items():
        if times > 1:
            yield f"{path}: {times} rows are called {name}; a cell has one row, `scaling collect` writes them anew"
    for outcome in sorted({cell.outcome for cell in cells} - set(OUTCOMES)):
        yield f"{path}: outcome {outcome!r} is none of {', '.join(OUTCOMES)}"
    if not any(cell.done for cell in cells):
        counted = Counter(cell.outcome for cell in cells)
        told = ", ".join(f"{times} {outcome}" for outcome, times in counted.items()) or "the file has no row"
        yield f"{path}: no cell is done yet ({told}); `gpt1-ds scaling run STUDY`, then `collect`"


def _table(path: Path, required: tuple[str, ...], optional: tuple[str, ...]) -> tuple[Row, ...]:
    words = ("cell", "task", "metric")
    numbers = [name for name in (*required, *optional) if name not in words]
    return tuple(read_csv(path, required=required, numbers=numbers)) if path.is_file() else ()


def _fit(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text())
        version = told["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: not a fit ({error}); `gpt1-ds scaling fit STUDY` writes it anew") from None
    if version != 1:
        raise DataError(f"{path}: format {version!r} is not known here (1 is); `gpt1-ds scaling fit STUDY` again")
    return dict(told)


def _is_stale(fit: dict[str, Any], results: Path) -> bool:
    """Whether the fit says it was made from a results.csv that is not this one."""
    data = fit.get("data") or {}
    if Path(str(data.get("file", ""))).name != results.name or "sha256" not in data:
        return False
    return bool(data["sha256"] != hashlib.sha256(results.read_bytes()).hexdigest())
