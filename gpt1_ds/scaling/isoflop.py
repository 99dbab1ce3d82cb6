"""IsoFLOP parabolas (approach 2 of arXiv 2203.15556): the best N of each compute budget, and a line through them; and
repeated data: tokens seen again count for less, and parameters beyond what the data can fill count for less.

Shown beside the fit, never in its place: the minima are biased, even without noise, by grids that are wide or off
centre and where alpha is not beta (arXiv 2603.22339).

    L = E + A / N'^alpha + B / D'^beta                                                (arXiv 2305.16264, section 3.1)
    D' = U (1 + R_D (1 - exp(-(D/U - 1) / R_D)))
    N' = U_N (1 + R_N (1 - exp(-(N/U_N - 1) / R_N)))
    U_N = min(N, G (U G)^(beta/alpha)),  G = (alpha A / (beta B))^(1/(alpha+beta))    compute-optimal N for U

R_D is about the number of extra epochs after which more of them bring little. As published, A, B, E, alpha and beta
come first, from points that repeat nothing; then R_D and R_N by Huber on log loss over all points. R_D and R_N are
searched on a grid of logs that closes in on the best cell: their objective is flat, and a descent ends anywhere in it.

Shapes: S fits side by side, P points, K values of one grid axis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_ds.scaling.forms import balance, huber, loss_at
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


BASE = ("alpha", "beta", "E", "A", "B")
RETURNS = ("R_D", "R_N")
BOUNDS = (0.05, 1e4)  # of R_D and R_N; at 10^4 a repeated token is a new one
COARSE, FINE, ROUNDS, SHRINK = 24, 5, 16, 1.5  # slowly: the valley is narrow and runs askew
BLOCK = 8  # fits at a time: their grid stays in cache
FLAT = 0.01  # of the objective


@dataclasses.dataclass(frozen=True)
class ProfileInterval:
    """Where the objective stays within FLAT of its best while the other of R_D and R_N is the best for it."""

    best: float
    R_D: tuple[float, float]
    R_N: tuple[float, float]
    at: tuple[float, float]  # R_D and R_N of the best


@dataclasses.dataclass(frozen=True)
class Runs:
    """Points of a repeated fit: parameters, tokens, unique tokens, loss in nats per token, each (P,)."""

    n: Floats
    d: Floats
    u: Floats
    loss: Floats


def optimal_size(values: dict[str, Floats], u: Floats) -> Floats:
    """(S, P) parameters that are compute-optimal for `u` (P,) unique tokens; every value is (S, 1)."""
    alpha, beta, A, B = (values[name] for name in ("alpha", "beta", "A", "B"))
    G = balance(alpha, beta, A, B)
    return np.asarray(G * (u * G) ** (beta / alpha))


def diminished(amount: Floats, unique: Floats, returns: Floats) -> Floats:
    """`unique` and what the rest of `amount` is worth: at most `returns` times as much again."""
    return unique * (1 - returns * np.expm1(-(amount / unique - 1) / returns))


def repeated_loss(values: dict[str, Floats], n: Floats, d: Floats, u: Floats) -> Floats:
    """(S, P) loss of the form at points (P,); every value is (S, 1)."""
    size = np.minimum(n, optimal_size(values, u))
    return loss_at(values, diminished(n, size, values["R_N"]), diminished(d, u, values["R_D"]))


def objective(values: dict[str, Floats], runs: Runs) -> Floats:
    """(S,): Huber of the residuals of log loss, summed over the points; every value is (S,)."""
    loss = repeated_loss({name: value[:, None] for name, value in values.items()}, runs.n, runs.d, runs.u)
    return np.asarray(huber(np.log(loss / runs.loss)).sum(-1))


def fit_returns(base: dict[str, Floats], runs: Runs, weights: Floats) -> tuple[Floats, Floats]:
    """The best (R_D, R_N) (S, 2) for bases (S,) each and points that count `weights` (S, P) times; objectives (S,)."""
    found, reached = [], []
    for start in range(0, len(weights), BLOCK):
        part = slice(start, start + BLOCK)
        block = {name: np.atleast_1d(value)[part] for name, value in base.items()}
        logs, best = _close_in(block, runs, weights[part])
        found.append(np.exp(logs))
        reached.append(best)
    return np.concatenate(found), np.concatenate(reached)


def profile(base: dict[str, float], runs: Runs) -> ProfileInterval:
    """How flat the objective is in R_D and in R_N at fixed A, B, E, alpha, beta."""
    one = {name: np.array([base[name]]) for name in BASE}
    axis = np.log(np.geomspace(*BOUNDS, 161))[None]
    grid = _grid(one, runs, np.ones((1, len(runs.loss))), axis, axis)[0]
    best = float(grid.min())
    ranges = []
    for over in (1, 0):
        near = np.exp(axis[0])[grid.min(axis=over) <= best * (1 + FLAT)]
        ranges.append((float(near[0]), float(near[-1])))
    row, column = np.unravel_index(grid.argmin(), grid.shape)
    at = (float(np.exp(axis[0, row])), float(np.exp(axis[0, column])))
    return ProfileInterval(best, ranges[0], ranges[1], at)


def _close_in(base: dict[str, Floats], runs: Runs, weights: Floats) -> tuple[Floats, Floats]:
    low, high = np.log(BOUNDS)
    S = len(weights)
    logs_d = logs_n = np.tile(np.linspace(low, high, COARSE), (S, 1))
    step = (high - low) / (COARSE - 1)
    every = np.arange(S)
    for _ in range(ROUNDS + 1):
        grid = _grid(base, runs, weights, logs_d, logs_n).reshape(S, -1)
        cell = grid.argmin(-1)
        best_d, best_n = logs_d[every, cell // logs_n.shape[1]], logs_n[every, cell % logs_n.shape[1]]
        around = np.linspace(-step, step, FINE)
        logs_d = np.clip(best_d[:, None] + around, low, high)
        logs_n = np.clip(best_n[:, None] + around, low, high)
        step /= SHRINK
    return np.stack([best_d, best_n], -1), grid.min(-1)


def _grid(base: dict[str, Floats], runs: Runs, weights: Floats, logs_d: Floats, logs_n: Floats) -> Floats:
    """(S, K, K) objectives; `logs_d`, `logs_n` (S, K)."""
    alpha, beta, E, A, B = (base[name][:, None, None] for name in BASE)
    size = np.minimum(runs.n, optimal_size({name: base[name][:, None] for name in BASE}, runs.u))[:, None]
    of_n = A * diminished(runs.n, size, np.exp(logs_n)[..., None]) ** -alpha
    of_d = B * diminished(runs.d, runs.u, np.exp(logs_d)[..., None]) ** -beta
    logs = np.log((E + of_d)[:, :, None] + of_n[:, None]) - np.log(runs.loss)
    return np.asarray(np.einsum("sklp,sp->skl", huber(logs), weights))
