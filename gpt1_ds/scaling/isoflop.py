"""IsoFLOP parabolas (approach 2 of arXiv 2203.15556): the best N of each compute budget, and a line through them.

Shown beside the fit, never in its place: the minima are biased, even without noise, by grids that are wide or off
centre and where alpha is not beta (arXiv 2603.22339).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_ds.scaling.points import Floats, Point, column

WIDTH = 1.15  # largest ratio of FLOPs inside one budget
BIAS = (
    "parabolas are biased even without noise, by wide or off-centre grids and where alpha differs from beta "
    "(arXiv 2603.22339): trust the fit"
)


def isoflop(points: Sequence[Point]) -> dict[str, Any] | None:
    """Parabolas of loss against log N, one per budget with three sizes or more, and log N_opt against log C.

    Budgets in FLOPs; `curvature`, `centre` (log N) and `floor` (nats) draw the parabola
    floor + curvature (log N - centre)^2. `a` and its line are there with two minima inside their sizes or more.
    None where no budget has three sizes.
    """
    budgets = [_parabola(group) for group in _budgets(points)]
    if not budgets:
        return None
    inside = [budget for budget in budgets if budget["inside"]]
    result: dict[str, Any] = {"budgets": budgets, "a": None, "intercept": None, "note": BIAS}
    if len(inside) >= 2:
        logs_c = np.log([budget["flops"] for budget in inside])
        slope, intercept = np.polyfit(logs_c, [budget["centre"] for budget in inside], 1)
        result |= {"a": float(slope), "intercept": float(intercept)}
    return result


def _budgets(points: Sequence[Point]) -> list[list[Point]]:
    """Groups of about equal compute with three sizes or more, in ascending order."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda point: point.compute):
        if groups and point.compute <= WIDTH * groups[-1][0].compute:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [group for group in groups if len({point.n for point in group}) >= 3]


def _parabola(group: Sequence[Point]) -> dict[str, Any]:
    logs: Floats = np.log(column(group, "n"))
    middle = logs.mean()
    curvature, slope, level = np.polyfit(logs - middle, column(group, "loss"), 2)
    centre = middle - slope / (2 * curvature)
    inside = bool(curvature > 0 and logs.min() <= centre <= logs.max())
    return {
        "flops": float(np.exp(np.log(column(group, "compute")).mean())),
        "points": len(group),
        "curvature": float(curvature),
        "centre": float(centre),
        "floor": float(level - slope**2 / (4 * curvature)),
        "n_opt": float(np.exp(centre)) if inside else None,
        "inside": inside,
    }
