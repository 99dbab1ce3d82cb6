"""Points of a scaling fit: one finished run each, read from a study's results.csv or from anybody's CSV."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.scaling.tables import DONE, CsvRow, check_names, convention, each, read_table, schedules

Floats = NDArray[np.float64]
T = TypeVar("T")

NEEDED = ("n", "d", "loss")
LOSSES = (1e-6, 1e6)  # lowest and highest, nats per token
KINDS = ("", "ladder", "data")  # depth and shape vary what L(N, D) has no word for
SAME = 1.01  # ratio of two sizes or budgets: at alpha = 0.34 it moves a term of one nat by 0.0034
FRESH_EPOCHS = 4.0  # up to here repeated tokens are about as good as new ones (arXiv 2305.16264)


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


def column(points: Iterable[Point], name: str) -> Floats:
    """Returns one number per point."""
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


def groups(items: Iterable[T], key: Callable[[T], float], ratio: float) -> list[tuple[float, list[T]]]:
    """Returns (geometric mean of key, its items) where the key is within `ratio` of each group's least, ascending."""
    found: list[list[T]] = []
    for item in sorted(items, key=key):
        if found and key(item) <= ratio * key(found[-1][0]):
            found[-1].append(item)
        else:
            found.append([item])
    return [(math.exp(sum(math.log(key(item)) for item in some) / len(some)), some) for some in found]


def distinct(points: Iterable[Point], name: str) -> int:
    """Returns how many values of `name` there are. Values within SAME of one another are one: programs count N a little
    differently, budgets are rounded to whole steps, and such a step moves the loss by less than a seed does.
    """
    return len(groups(points, lambda point: float(getattr(point, name)), SAME))


def noise_floor(points: Iterable[Point]) -> dict[str, Any] | None:
    """Returns how far runs that differ in the seed alone lie apart: the standard deviation of loss, as a fraction of
    it, pooled over the groups of runs with the same N, D and U; None where no group has two seeds.
    """
    same: dict[tuple[float, float, float], list[Point]] = {}
    for point in points:
        same.setdefault((point.n, point.d, point.u), []).append(point)
    losses = [column(some, "loss") for some in same.values() if len({point.seed for point in some}) > 1]
    if not losses:
        return None
    runs = sum(map(len, losses))
    squares = sum(float(((some / some.mean() - 1) ** 2).sum()) for some in losses)
    return {"relative_std": (squares / (runs - len(losses))) ** 0.5, "groups": len(losses), "runs": runs}


def without_repetition(points: Points) -> Points:
    """Returns the points that a form without a repetition term can describe; the others are counted."""
    kept = tuple(point for point in points.rows if point.epochs <= FRESH_EPOCHS)
    gone = len(points.rows) - len(kept)
    if not gone:
        return points
    reason = f"more than {FRESH_EPOCHS:.0f} epochs (--form repeated takes them)"
    return dataclasses.replace(points, rows=kept, left_out={**points.left_out, reason: gone})


def read_points(file: Path) -> Points:
    """Returns the points of a CSV with the columns n, d, loss and, where there, u, held_out, cell, seed, flops,
    outcome, kind, best_rate, schedule.

    Left out and counted: rows whose outcome is not `done`, kinds other than ladder and data, and best_rate=0.
    Raises DataError naming file, row, column, value and the way out.
    """
    kept: list[CsvRow] = []
    left_out: dict[str, int] = {}
    for row in read_table(file, NEEDED):
        if reason := _reason_to_leave_out(row):
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            kept.append(row)
    points = each(kept, _point)
    check_names(kept)
    if not points:
        said = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"{file}: no point to fit{': left out ' + said if said else ''}; run the study's cells first")
    return Points(file, tuple(points), left_out, convention(kept), schedules(kept))


def _reason_to_leave_out(row: CsvRow) -> str:
    outcome, kind = row.text("outcome") or DONE, row.text("kind")
    if outcome != DONE:
        return outcome
    if kind not in KINDS:
        return f"of kind {kind}"
    return "" if row.flag("best_rate", missing=True) else "with a worse learning rate"


def _loss(row: CsvRow) -> float:
    """Returns the loss of a row. Raises DataError outside of what a loss in nats can be, where no fit is exact."""
    loss = row.positive("loss")
    if not LOSSES[0] <= loss <= LOSSES[1]:
        what = f"{row.text('loss')} is no loss in nats per token, {LOSSES[0]:g} to {LOSSES[1]:g}"
        raise row.problem("loss", what)
    return loss


def _point(row: CsvRow) -> Point:
    n, d = row.positive("n"), row.positive("d")
    return Point(
        cell=row.name,
        n=n,
        d=d,
        u=min(row.positive("u", d), d),  # a corpus larger than the run is not repeated
        loss=_loss(row),
        held_out=row.flag("held_out"),
        seed=row.text("seed"),
        flops=row.positive("flops", 0.0),
    )
