"""Reads the folder of a scaling study: results.csv, fit.json, predictions.csv and downstream.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.scaling.points import NEEDED
from gpt1_ds.scaling.predict import Fit, read_fit
from gpt1_ds.scaling.tables import (
    COLUMNS,
    CONVENTIONS,
    DONE,
    OUTCOMES,
    TEXTS,
    WAITING,
    CsvRow,
    check_names,
    convention,
    each,
    read_table,
    schedules,
)

UNKNOWN = "as given in results.csv (the convention is not recorded)"
WHOLE = ("layers", "width", "seed")  # of the numbers in results.csv


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
    best_rate: bool = True  # of the learning rates tried at its (n, d, u)
    arm: str = ""
    kind: str = ""
    reason: str = ""  # why it ended
    run: str = ""
    schedule: str = ""
    layers: int | None = None
    width: int | None = None
    seed: int | None = None
    learning_rate: float | None = None
    n_all: float | None = None
    bits_per_byte: float | None = None
    own_share: float | None = None
    seconds: float | None = None
    rank_hours: float | None = None

    @property
    def done(self) -> bool:
        """Returns whether its loss is that of all its tokens; a cell that ended early has none to compare."""
        return self.outcome == DONE and self.loss is not None

    @property
    def epochs(self) -> float:
        return self.d / self.u

    @property
    def final_loss(self) -> float:
        assert self.loss is not None, "asked of cells that are done"
        return self.loss


@dataclass(frozen=True)
class DownstreamScore:
    """A row of downstream.csv."""

    cell: str
    task: str
    metric: str
    flops: float  # of pre-training
    value: float
    control: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class ScalingResults:
    """A study as far as it has come."""

    folder: Path
    cells: tuple[Cell, ...]
    law: Fit | None
    predictions: Mapping[str, float]  # cell -> loss, of predictions.csv
    downstream: tuple[DownstreamScore, ...]
    convention: str  # what N counts, in words
    schedule: str
    flops_given: bool  # false: some are 6 N D
    stale: bool  # the fit is of another results.csv

    @property
    def fit(self) -> Mapping[str, Any]:
        """fit.json; empty where there is none."""
        return self.law.record if self.law else {}

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def done(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.done]

    @property
    def outcomes(self) -> Counter[str]:
        return _outcomes(self.cells)

    def error_percent(self, cell: Cell) -> float | None:
        """Returns (predicted - loss) / loss; None of a cell without one of them."""
        if cell.loss is None or cell.cell not in self.predictions:
            return None
        return 100 * (self.predictions[cell.cell] / cell.loss - 1)

    def run_dir(self, cell: Cell) -> RunDir | None:
        """Returns the cell's run folder: that in this study's folder, which may be a copy of the one that the path in
        results.csv names; None where there is no metrics.jsonl.
        """
        places = [self.folder / cell.cell, *([self.folder / cell.run, Path(cell.run)] if cell.run else [])]
        return next((RunDir(place) for place in places if (place / "metrics.jsonl").is_file()), None)


def read_scaling_results(folder: Path) -> ScalingResults:
    """Raises DataError, each problem a line: no results.csv, one that cannot be read, or none of its cells done."""
    path = folder / "results.csv"
    if not path.is_file():
        raise DataError(f"{path}: missing; `gpt1-ds scaling collect STUDY` writes it")
    rows = read_table(path, NEEDED)
    cells = tuple(each(rows, _cell))
    check_names(rows)
    if not any(cell.done for cell in cells):
        outcomes = ", ".join(f"{times} {outcome}" for outcome, times in _outcomes(cells).items())
        outcomes = outcomes or "the file has no row"
        raise DataError(f"{path}: no cell is done yet ({outcomes}); `gpt1-ds scaling run STUDY`, then `collect`")
    law = read_fit(folder / "fit.json") if (folder / "fit.json").is_file() else None
    predicted = each(_rows(folder / "predictions.csv", "cell", "predicted"), lambda x: (x.name, x.number("predicted")))
    scores = each(_rows(folder / "downstream.csv", "cell", "flops", "task", "metric", "value"), _score)
    counts = (law.record.get("convention") if law else None) or convention(rows) or UNKNOWN
    return ScalingResults(
        folder=folder,
        cells=cells,
        law=law,
        predictions={name: loss for name, loss in predicted if loss is not None},
        downstream=tuple(score for score in scores if score),
        convention=CONVENTIONS.get(counts, counts),
        schedule=schedules(rows) or "not recorded",
        flops_given=all(row.text("flops") for row in rows),
        stale=law is not None and law.is_stale,
    )


def _cell(row: CsvRow) -> Cell:
    n, d = row.positive("n"), row.positive("d")
    values: dict[str, Any] = {
        **{"cell": row.name, "n": n, "d": d, "u": min(row.positive("u", d), d)},
        **{"flops": row.positive("flops", 6 * n * d)},
        **{"held_out": row.flag("held_out"), "best_rate": row.flag("best_rate", missing=True)},
    }
    for name in COLUMNS:
        if name in Cell.__dataclass_fields__ and name not in values:
            values[name] = row.text(name) if name in TEXTS else row.number(name)
    values |= {name: int(values[name]) for name in WHOLE if values[name] is not None}
    values["outcome"] = values["outcome"] or (WAITING if values["loss"] is None else DONE)
    for name in ("loss", "learning_rate"):
        if values[name] is not None:
            row.positive(name)
    if values["outcome"] not in OUTCOMES:
        known = ", ".join(OUTCOMES)
        raise DataError(f"{row.at('outcome')}: {values['outcome']!r} is none of {known}; write one of them")
    return Cell(**values)


def _outcomes(cells: Iterable[Cell]) -> Counter[str]:
    """Returns the number of cells of each outcome, in the order of OUTCOMES."""
    counted = Counter(cell.outcome for cell in cells)
    return Counter({outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]})


def _rows(path: Path, *needed: str) -> list[CsvRow]:
    return read_table(path, needed) if path.is_file() else []


def _score(row: CsvRow) -> DownstreamScore | None:
    flops, value = row.number("flops"), row.number("value")
    if value is None or not flops or flops <= 0:
        return None
    beside = row.number("control"), row.number("chance")
    return DownstreamScore(row.name, row.text("task"), row.text("metric"), flops, value, *beside)
