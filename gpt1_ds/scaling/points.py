"""Points of a scaling fit: one finished run each, read from a study's results.csv or from anybody's CSV."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError

Floats = NDArray[np.float64]

NEEDED = ("n", "d", "loss")
CONVENTIONS = {"n_matrices_head": "matrices_head", "n_all": "all", "n_transformer": "transformer"}
KINDS = ("", "ladder", "data")  # depth and shape vary what L(N, D) has no word for
FRESH_EPOCHS = 4.0  # up to here repeated tokens are about as good as new ones (arXiv 2305.16264)
SHOWN = 5  # problems of one file


@dataclasses.dataclass(frozen=True)
class Point:
    """One run. `n` parameters, `d` tokens trained on, `u` unique ones among them, `loss` in nats per token."""

    cell: str
    n: float
    d: float
    u: float
    loss: float
    held_out: bool = False
    seed: str = ""
    flops: float = 0.0

    @property
    def compute(self) -> float:
        """Training FLOPs: what the file says, else 6 N D."""
        return self.flops or 6 * self.n * self.d

    @property
    def epochs(self) -> float:
        return self.d / self.u


@dataclasses.dataclass(frozen=True)
class Points:
    """The runs of one file and what was left out of it, each reason with its count."""

    file: Path
    rows: tuple[Point, ...]
    left_out: Mapping[str, int]
    convention: str | None = None
    schedule: str | None = None

    @property
    def fitted(self) -> tuple[Point, ...]:
        return tuple(point for point in self.rows if not point.held_out)

    @property
    def held_out(self) -> tuple[Point, ...]:
        return tuple(point for point in self.rows if point.held_out)


def column(points: Iterable[Point], name: str) -> Floats:
    """One number per point."""
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


def without_repetition(points: Points) -> Points:
    """The points that a form without a repetition term can describe; the others are counted."""
    kept = tuple(point for point in points.rows if point.epochs <= FRESH_EPOCHS)
    gone = len(points.rows) - len(kept)
    if not gone:
        return points
    reason = f"more than {FRESH_EPOCHS:.0f} epochs (--form repeated takes them)"
    return dataclasses.replace(points, rows=kept, left_out={**points.left_out, reason: gone})


def read_points(file: Path) -> Points:
    """Points of a CSV with the columns n, d, loss and, where there, u, held_out, cell, seed, flops, outcome, kind,
    best_rate, schedule.

    Left out and counted: rows whose outcome is not `done`, kinds other than ladder and data, and best_rate=0.
    Raises DataError naming file, row, column, value and the way out.
    """
    rows = _rows(file)
    left_out: dict[str, int] = {}
    points: list[Point] = []
    problems: list[str] = []
    lines: list[int] = []
    for line, row in rows:
        reason = _reason_to_leave_out(row)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        try:
            points.append(_point(file, line, row))
            lines.append(line)
        except DataError as error:
            problems += error.problems
    more = len(problems) - SHOWN
    DataError.raise_all(problems[:SHOWN] + ([f"{file}: and {more} more problems like these"] if more > 0 else []))
    _check_names(file, points, lines)
    if not points:
        said = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"{file}: no point to fit{': left out ' + said if said else ''}; run the study's cells first")
    columns = [row for _, row in rows if not _reason_to_leave_out(row)]
    return Points(file, tuple(points), left_out, _convention(columns), _schedule(columns))


def _rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """(line number, row) of the file; column names in small letters, values stripped."""
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            names = [(name or "").strip().lower() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            missing = [name for name in NEEDED if name not in names]
            if missing:
                found = ", ".join(names) or "nothing"
                raise DataError(f"{file}: no column {', '.join(missing)} among {found}; name them n, d and loss")
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(f"{file}: row {reader.line_num} has not {len(names)} values; mend the row")
                rows.append((reader.line_num, {name: (value or "").strip() for name, value in row.items()}))
            return rows
    except FileNotFoundError:
        raise DataError(f"{file}: is not here; name a CSV with the columns n, d, loss") from None
    except (IsADirectoryError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: is not a CSV of text ({error}); name a CSV with the columns n, d, loss") from None


def _reason_to_leave_out(row: Mapping[str, str]) -> str:
    outcome = row.get("outcome", "done") or "done"
    if outcome != "done":
        return outcome
    kind = row.get("kind", "")
    if kind not in KINDS:
        return f"of kind {kind}"
    return "with a worse learning rate" if row.get("best_rate") == "0" else ""


def _point(file: Path, line: int, row: Mapping[str, str]) -> Point:
    def number(name: str, missing: float | None = None) -> float:
        text = row.get(name, "")
        if not text and missing is not None:
            return missing
        where = f"{file}: row {line}, column {name}: "
        try:
            value = float(text)
        except ValueError:
            way_out = "write a number, or leave the row out with outcome=failed"
            raise DataError(f"{where}{text or 'empty'!r} is not a number; {way_out}") from None
        if not math.isfinite(value) or value <= 0:
            raise DataError(f"{where}{text} is not a positive number; set outcome=diverged to leave the row out")
        return value

    held_out = row.get("held_out", "").lower()
    if held_out not in ("", "0", "1", "true", "false", "0.0", "1.0"):
        raise DataError(f"{file}: row {line}, column held_out: {held_out!r} is neither 0 nor 1; write one of them")
    n, d = number("n"), number("d")
    return Point(
        cell=row.get("cell") or f"row {line}",
        n=n,
        d=d,
        u=min(number("u", d), d),  # a corpus larger than the run is not repeated
        loss=number("loss"),
        held_out=held_out in ("1", "true", "1.0"),
        seed=row.get("seed", ""),
        flops=number("flops", 0.0),
    )


def _check_names(file: Path, points: list[Point], lines: list[int]) -> None:
    first: dict[str, int] = {}
    for point, line in zip(points, lines, strict=True):
        if point.cell in first:
            both = f"rows {first[point.cell]} and {line}"
            raise DataError(f"{file}: {both}, column cell: {point.cell!r} names two cells; rename or remove one")
        first[point.cell] = line


def _convention(rows: list[dict[str, str]]) -> str | None:
    """Which count of parameters `n` is, where the file has the three of them."""
    for name, convention in CONVENTIONS.items():
        if rows and all(row.get(name) and row[name] == row["n"] for row in rows):
            return convention
    return None


def _schedule(rows: list[dict[str, str]]) -> str | None:
    kinds = sorted({row.get("schedule", "") for row in rows} - {""})
    return "+".join(kinds) or None
