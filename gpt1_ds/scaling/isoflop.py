"""IsoFLOP parabolas (approach 2 of arXiv 2203.15556): the best N of each compute budget, and a line through them.

Runs with about the same training FLOPs C make one budget. The loss of its runs against log N is fitted by a parabola,
whose minimum is the best size N_opt of that budget; log N_opt against log C is fitted by a line of slope a:

    loss = floor + curvature (log N - centre)^2        log N_opt = centre = intercept + a log C

They are shown beside the fit, never in its place: the minima are biased, even without noise, by grids that are wide or
off centre and where alpha is not beta (arXiv 2603.22339).
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
    """Fits a parabola to every budget with three sizes or more, and the line to the minima that lie inside their sizes.

    Returns the `isoflop` of fit.json: `budgets` with their FLOPs, parabola and `n_opt` (None outside of the sizes);
    slope `a` and `intercept` of the line (None with fewer than two such minima). None where no budget has three sizes.
    """
    budgets = []
    for flops, runs in groups(points, lambda point: point.compute, WIDTH):
        if len({point.n for point in runs}) >= 3:
            budgets.append(_budget(flops, runs))
    if not budgets:
        return None
    result: dict[str, Any] = {"budgets": budgets, "a": None, "intercept": None, "note": BIAS}
    with_minimum = [budget for budget in budgets if budget["inside"]]
    if len(with_minimum) >= 2:
        log_flops = np.log([budget["flops"] for budget in with_minimum])
        slope, intercept = np.polyfit(log_flops, [budget["centre"] for budget in with_minimum], 1)
        result |= {"a": float(slope), "intercept": float(intercept)}
    return result


def _budget(flops: float, runs: Sequence[Point]) -> dict[str, Any]:
    curve = parabola(column(runs, "n"), column(runs, "loss"))
    n_opt = math.exp(curve.centre) if curve.inside else None
    return {"flops": flops, "points": len(runs), **dataclasses.asdict(curve), "n_opt": n_opt}


def parabola(n: Floats, loss: Floats) -> Parabola:
    """Returns the least-squares parabola of loss (P,) against log N (P,); there are three sizes or more."""
    log_n: Floats = np.log(n)
    mean = log_n.mean()
    curvature, slope, constant = np.polyfit(log_n - mean, loss, 2)
    centre = mean - slope / (2 * curvature)
    inside = bool(curvature > 0 and log_n.min() <= centre <= log_n.max())
    return Parabola(float(curvature), float(centre), float(constant - slope**2 / (4 * curvature)), inside)
