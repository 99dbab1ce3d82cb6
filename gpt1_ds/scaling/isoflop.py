"""IsoFLOP parabolas (approach 2 of arXiv 2203.15556): the best N of each compute budget, and a line through them.

Shown beside the fit, never in its place: the minima are biased, even without noise, by grids that are wide or off
centre and where alpha is not beta (arXiv 2603.22339).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_ds.scaling.points import Floats, Point, column, groups

WIDTH = 1.15  # largest ratio of FLOPs inside one budget
BIAS = (
    "parabolas are biased even without noise, by wide or off-centre grids and where alpha differs from beta "
    "(arXiv 2603.22339): trust the fit"
)


@dataclasses.dataclass(frozen=True)
class Parabola:
    """floor + curvature (log N - centre)^2, and whether its minimum lies inside of the sizes."""

    curvature: float
    centre: float  # log N
    floor: float  # nats per token
    inside: bool


def isoflop(points: Sequence[Point]) -> dict[str, Any] | None:
    """Parabolas of loss against log N, one per budget with three sizes or more, and log N_opt against log C.

    Budgets in FLOPs; `curvature`, `centre` (log N) and `floor` (nats) draw the parabola
    floor + curvature (log N - centre)^2. `a` and its line are there with two minima inside their sizes or more.
    None where no budget has three sizes.
    """
    found = groups(points, lambda point: point.compute, WIDTH)
    budgets = [_budget(flops, some) for flops, some in found if len({point.n for point in some}) >= 3]
    if not budgets:
        return None
    inside = [budget for budget in budgets if budget["inside"]]
    result: dict[str, Any] = {"budgets": budgets, "a": None, "intercept": None, "note": BIAS}
    if len(inside) >= 2:
        logs_c = np.log([budget["flops"] for budget in inside])
        slope, intercept = np.polyfit(logs_c, [budget["centre"] for budget in inside], 1)
        result |= {"a": float(slope), "intercept": float(intercept)}
    return result


def _budget(flops: float, points: Sequence[Point]) -> dict[str, Any]:
    found = parabola(column(points, "n"), column(points, "loss"))
    best = math.exp(found.centre) if found.inside else None
    return {"flops": flops, "points": len(points), **dataclasses.asdict(found), "n_opt": best}


def parabola(n: Floats, loss: Floats) -> Parabola:
    """Least squares of loss (P,) against log N (P,), of three sizes or more."""
    logs: Floats = np.log(n)
    middle = logs.mean()
    curvature, slope, level = np.polyfit(logs - middle, loss, 2)
    centre = middle - slope / (2 * curvature)
    inside = bool(curvature > 0 and logs.min() <= centre <= logs.max())
    return Parabola(float(curvature), float(centre), float(level - slope**2 / (4 * curvature)), inside)
