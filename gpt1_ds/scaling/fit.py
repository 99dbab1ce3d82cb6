"""The fit of a form to points: variable projection on a grid of exponents, then descent from the best of them.

Stage 1: for every pair of exponents on a 32 x 32 grid, A, B and E follow by non-negative least squares on relative
residuals. Stage 2: L-BFGS-B with the analytic gradient on the true objective times 10^4 (ftol 1e-15) from the five
best, then a polish that does not stop early. All five should end in one place; where they do not, say so.

The polish makes many small fits side by side, the draws of a bootstrap, too: Levenberg-Marquardt on reweighted least
squares. Huber's function is majorised at each residual r by a parabola of weight min(1, delta / |r|), so every accepted
step lowers the true objective. Far from any optimum this is Gauss-Newton, which does not mind that exponent, scale and
E are nearly collinear, where quasi-Newton stops early, as it did in published fits.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np

from gpt1_ds.common.errors import UserError
from gpt1_ds.scaling.forms import DELTA, Problem
from gpt1_ds.scaling.points import Floats

ITERATIONS = 400
DAMPING = (1e-12, 1e10)


def descend(
    problem: Problem, theta: Floats, weights: Floats, tolerance: float = 1e-9, iterations: int = ITERATIONS
) -> tuple[Floats, Floats]:
    """Lowers the objective of S fits from `theta` (S, F), where point p counts `weights` (S, P) times.

    A fit ends when three steps in a row gain less than `tolerance` of its objective, or none is found any more.
    Returns the parameters (S, F), inside the problem's bounds, and the objectives (S,).
    """
    low, high = problem.bounds
    theta = np.clip(theta, low, high)
    best = problem.objective(theta, weights)
    damping, idle = np.full(len(theta), 1e-3), np.zeros(len(theta), dtype=int)
    live = np.arange(len(theta))
    for _ in range(iterations):
        if not len(live):
            break
        trial = np.clip(theta[live] + _steps(problem, theta[live], weights[live], damping[live]), low, high)
        reached = problem.objective(trial, weights[live])
        gained = best[live] - reached
        better = gained > 0
        small = gained <= tolerance * best[live]
        idle[live] = np.where(better & small, idle[live] + 1, np.where(better, 0, idle[live]))
        damping[live] = np.clip(damping[live] * np.where(better, 0.2, 5.0), *DAMPING)
        theta[live[better]], best[live[better]] = trial[better], reached[better]
        live = live[(idle[live] < 3) & (damping[live] < DAMPING[1])]
    return theta, best


def _steps(problem: Problem, theta: Floats, weights: Floats, damping: Floats) -> Floats:
    """Returns one damped Gauss-Newton step (S, F) of each fit; parameters pressed against a bound stay."""
    residuals, slopes = problem.residuals(theta)
    bend = weights
    if problem.kind == "huber":
        bend = weights * np.minimum(1.0, DELTA / np.maximum(np.abs(residuals), 1e-300))
    gradient = ((weights * problem.influence(residuals))[:, None, :] @ slopes)[:, 0]
    hessian = np.swapaxes(slopes * bend[..., None], 1, 2) @ slopes
    low, high = problem.bounds
    pressed = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
    gradient = np.where(pressed, 0.0, gradient)
    diagonal = np.einsum("sff->sf", hessian)
    scale = np.maximum(diagonal, 1e-12 * diagonal.max(-1, keepdims=True) + 1e-300)
    hessian = np.where(pressed[:, :, None] | pressed[:, None, :], 0.0, hessian)
    F = theta.shape[-1]
    hessian[:, range(F), range(F)] += damping[:, None] * scale + np.where(pressed, scale, 0.0)
    return np.asarray(-np.linalg.solve(hessian, gradient[..., None])[..., 0], dtype=np.float64)


STARTS = 5
GRID = 32
GRID_EXPONENTS = (0.03, 2.0)
SCALE = 1e4  # of the objective, so that ftol is not met at the start
AGREE = 1e-6  # of the objective: starts within this of the best are at the optimum


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Where a fit ended. `theta` (F,); `objectives` of all starts, best first; `second` another start (F,)."""

    theta: Floats
    objective: float
    objectives: tuple[float, ...]
    second: Floats

    @property
    def agreeing(self) -> int:
        best = self.objectives[0]
        return sum(value <= best * (1 + AGREE) + 1e-18 for value in self.objectives)


def scipy_part(name: str) -> Any:
    """Returns a module of scipy, or the UserError that says how to install it."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError:
        raise UserError("scipy is not installed: pip install 'gpt1-ds[scaling]'") from None


def fit(problem: Problem) -> Optimum:
    """Returns the best optimum of five starts."""
    starts = grid_starts(problem)
    ends = np.stack([quasi_newton(problem, start) for start in starts])
    ends, objectives = descend(problem, ends, np.ones((len(ends), len(problem.loss))), 1e-13, 2000)
    order = np.argsort(objectives)
    best = int(order[0])
    second = starts[-1] if best == 0 else starts[0]
    return Optimum(ends[best], float(objectives[best]), tuple(float(objectives[i]) for i in order), second)


def grid_starts(problem: Problem) -> Floats:
    """Returns (STARTS, F): the points of the exponents' grid with the least sum of squared relative residuals, where A,
    B and E are the best for their exponents (none negative).
    """
    nnls = scipy_part("optimize").nnls
    axis = np.geomspace(*GRID_EXPONENTS, GRID)
    form = problem.form
    names = [name for name in ("alpha", "beta") if name in form.free]
    if len(names) == 2:
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    else:
        grid = np.geomspace(*GRID_EXPONENTS, GRID * 4)[:, None]
    candidates, misses = [], []
    low, high = problem.bounds
    for exponents in grid:
        theta = np.zeros(len(form.free))
        theta[[form.free.index(name) for name in names]] = exponents
        alpha, beta, *_ = form.five(theta)
        columns = {"a": np.exp(-alpha * problem.x), "b": np.exp(-beta * problem.y), "E": np.ones_like(problem.x)}
        linear = [name for name in ("a", "b", "E") if name in form.free]
        matrix = np.stack([columns[name] for name in linear], -1) / problem.loss[:, None]
        scales, miss = nnls(matrix, np.ones(len(problem.loss)))
        for name, value in zip(linear, scales, strict=True):
            theta[form.free.index(name)] = value if name == "E" else np.log(max(value, 1e-4))
        candidates.append(np.clip(theta, low, high))
        misses.append(miss)
    return np.stack(candidates)[np.argsort(misses)[:STARTS]]


def value_and_gradient(problem: Problem, theta: Floats) -> tuple[float, Floats]:
    """Returns the objective at theta (F,) and its gradient (F,)."""
    residuals, slopes = problem.residuals(theta[None])
    return float(problem.cost(residuals).sum()), problem.influence(residuals)[0] @ slopes[0]


def quasi_newton(problem: Problem, start: Floats) -> Floats:
    """Returns L-BFGS-B from `start` (F,) on the objective times SCALE."""

    def scaled(theta: Floats) -> tuple[float, Floats]:
        value, gradient = value_and_gradient(problem, theta)
        return SCALE * value, SCALE * gradient

    bounds = list(zip(*problem.bounds, strict=True))
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 20000, "maxcor": 20}
    found = scipy_part("optimize").minimize(scaled, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x, dtype=np.float64)
