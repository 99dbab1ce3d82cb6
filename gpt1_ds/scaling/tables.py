"""The tables of a study: the columns of its results.csv, and one way to read and write such files.

A row's values are read when they are asked for, so that rows nobody uses may hold anything. Every message names file,
row (its line in the file), column, value and the way out.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import write_atomic

COLUMNS = {  # of results.csv: name -> what it says; configs/README.md shows them
    "cell": "run folder's name in the study's",
    "arm": "arm of the study",
    "kind": "ladder, depth, shape or data",
    "layers": "depth",
    "width": "of the hidden states",
    "heads": "attention heads",
    "context": "tokens of a sequence",
    "vocab_size": "ids of the tokenizer",
    "seed": "of weights, dropout and data order",
    "learning_rate": "highest of the run",
    "best_rate": "0: another rate of the same (n, d, u) lost fewer seeds, or is better on shared ones; not fitted",
    "schedule": "of the learning rate",
    "n_all": "all parameters",
    "n_matrices_head": "weights of matrix products, head included",
    "n_transformer": "weights of the blocks",
    "n": "parameters in the study's convention: what fits use",
    "d": "tokens trained on",
    "u": "distinct tokens among them",
    "epochs": "d / u",
    "flops": "model FLOPs for d tokens",
    "own_share": "of its steps, those that it ran itself; a branch has the others from its trunk",
    "loss": "last held-out loss, nats per token",
    "bits_per_byte": "the same per byte of text, in bits",
    "held_out": "1: named in advance as not to be fitted",
    "outcome": "done, diverged, dominated, failed, running or waiting",
    "reason": "why it ended, where it did not end as planned",
    "seconds": "of training, without evaluation and saves",
    "rank_hours": "seconds x ranks / 3600",
    "run": "its run folder",
}
OUTCOMES = ("done", "diverged", "dominated", "failed", "running", "waiting")
DONE, DIVERGED, DOMINATED, FAILED, RUNNING, WAITING = OUTCOMES
LOST = (DIVERGED, DOMINATED, FAILED)  # outcomes of a cell that gives no loss
DOWNSTREAM = ("cell", "n", "d", "flops", "task", "metric", "value", "control", "chance")  # columns of downstream.csv
CONVENTIONS = {name: COLUMNS[f"n_{name}"] for name in ("matrices_head", "all", "transformer")}  # what n may count
TEXTS = ("cell", "arm", "kind", "schedule", "outcome", "reason", "run")  # the other columns are numbers
FLAGS = {"0": False, "false": False, "0.0": False, "1": True, "true": True, "1.0": True}
SHOWN = 5  # problems of one file
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CsvRow:
    """One row of a CSV; a column that is not there is empty."""

    file: Path
    line: int
    values: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.text("cell") or f"row {self.line}"

    def text(self, name: str) -> str:
        return self.values.get(name, "")

    def number(self, name: str) -> float | None:
        """Returns the number in a cell; None where the cell is empty or not finite. Raises DataError for text."""
        text = self.text(name)
        try:
            value = float(text or "nan")
        except ValueError:
            raise self.problem(name, f"{text!r} is not a number") from None
        return value if math.isfinite(value) else None

    def positive(self, name: str, missing: float | None = None) -> float:
        """Returns a number above 0, or `missing` where the value is empty. Raises DataError for everything else."""
        text = self.text(name)
        if not text and missing is not None:
            return missing
        value = self.number(name)
        if value is None or value <= 0:
            raise self.problem(name, f"{text or 'empty'} is not a positive number")
        return value

    def flag(self, name: str, missing: bool = False) -> bool:
        text = self.text(name).lower()
        if text and text not in FLAGS:
            raise DataError(f"{self.at(name)}: {text!r} is neither 0 nor 1; write one of them")
        return FLAGS.get(text, missing)

    def at(self, name: str) -> str:
        return f"{self.file}: row {self.line}, column {name}"

    def problem(self, name: str, what: str) -> DataError:
        failed = "; where the run failed, set outcome=failed and leave it empty" if name == "loss" else ""
        return DataError(f"{self.at(name)}: {what}; correct it or remove the row{failed}")


def read_table(file: Path, needed: Sequence[str]) -> list[CsvRow]:
    """Returns the rows of a CSV with at least the columns `needed`; column names in small letters, values stripped.

    Raises DataError for a file that is missing or no CSV, for missing columns and torn rows.
    """
    wanted = f"name a CSV with the columns {', '.join(needed)}"
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            names = [(name or "").strip().lower() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            lines = [(reader.line_num, values) for values in reader]
    except FileNotFoundError:
        raise DataError(f"{file}: is not here; {wanted}") from None
    except (IsADirectoryError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: is not a CSV of text ({error}); {wanted}") from None
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise DataError(f"{file}: two columns are named {', '.join(twice)} (in small letters); rename one of them")
    missing = [name for name in needed if name not in names]
    if missing:
        found = ", ".join(names) or "nothing"
        raise DataError(f"{file}: no column {', '.join(missing)} among {found}; name them so in the first line")

    def row(line: int, values: Mapping[str | Any, str | Any]) -> CsvRow:
        if None in values or None in values.values():
            raise DataError(f"{file}: row {line} has not {len(names)} values; correct the row")
        return CsvRow(file, line, {name: value.strip() for name, value in values.items()})

    return each(lines, lambda numbered: row(*numbered))


def each(rows: Iterable[Any], make: Callable[[Any], T]) -> list[T]:
    """`make` of every row. Raises one DataError with what it refuses of them, and how many more there are."""
    made: list[T] = []
    problems: list[str] = []
    for row in rows:
        try:
            made.append(make(row))
        except DataError as error:
            problems += error.problems
    more = len(problems) - SHOWN
    if more > 0:
        problems[SHOWN:] = [f"{problems[0].partition(': ')[0]}: and {more} more problems like these"]
    DataError.raise_all(problems)
    return made


def check_names(rows: Iterable[CsvRow]) -> None:
    """Raises DataError where two rows are called the same."""
    first: dict[str, CsvRow] = {}

    def check(row: CsvRow) -> None:
        other = first.setdefault(row.name, row)
        if other is not row:
            both = f"rows {other.line} and {row.line}, column cell"
            raise DataError(f"{row.file}: {both}: {row.name!r} names two cells; rename or remove one")

    each(rows, check)


def convention(rows: Collection[CsvRow]) -> str | None:
    """Returns which count of parameters `n` is, by name, where the file has the three of them."""
    for name in CONVENTIONS:
        if rows and all(row.text(f"n_{name}") and row.text(f"n_{name}") == row.text("n") for row in rows):
            return name
    return None


def schedules(rows: Iterable[CsvRow]) -> str | None:
    """Returns the schedules of the rows, joined by +."""
    return "+".join(sorted({row.text("schedule") for row in rows} - {""})) or None


def write_table(path: Path, columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A CSV of the rows; None becomes empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, text.getvalue())
