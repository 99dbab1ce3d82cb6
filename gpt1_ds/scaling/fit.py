"""The fit of a form to points: variable projection on a grid of exponents, then descent from the best of them.

Stage 1: for every pair of exponents on a 32 x 32 grid, A, B and E follow by non-negative least squares on relative
residuals. Stage 2: L-BFGS-B with the analytic gradient on the true objective times 10^4 (ftol 1e-15) from the five
best, then a polish that does not stop early (descent.py). All five should end in one place; where they do not, say so.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np

from gpt1_ds.common.errors import UserError
from gpt1_ds.scaling.descent import descend
from gpt1_ds.scaling.forms import Problem
from gpt1_ds.scaling.points import Floats

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
    """A module of scipy, or the UserError that says how to install it."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError:
        raise UserError("scipy is not installed: pip install 'gpt1-ds[scaling]'") from None


def fit(problem: Problem) -> Optimum:
    """The best optimum of five starts."""
    starts = grid_starts(problem)
    ends = np.stack([quasi_newton(problem, start) for start in starts])
    ends, objectives = descend(problem, ends, np.ones((len(ends), len(problem.loss))), 1e-13, 2000)
    order = np.argsort(objectives)
    best = int(order[0])
    second = starts[-1] if best == 0 else starts[0]
    return Optimum(ends[best], float(objectives[best]), tuple(float(objectives[i]) for i in order), second)


def grid_starts(problem: Problem, count: int = STARTS) -> Floats:
    """(count, F): the points of the exponents' grid with the least sum of squared relative residuals, where A, B and
    E are the best for their exponents (none negative).
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
    return np.stack(candidates)[np.argsort(misses)[:count]]


def value_and_gradient(problem: Problem, theta: Floats) -> tuple[float, Floats]:
    """The objective at theta (F,) and its gradient (F,)."""
    residuals, slopes = problem.residuals(theta[None])
    return float(problem.cost(residuals).sum()), problem.influence(residuals)[0] @ slopes[0]


def quasi_newton(problem: Problem, start: Floats) -> Floats:
    """L-BFGS-B from `start` (F,) on the objective times SCALE."""

    def scaled(theta: Floats) -> tuple[float, Floats]:
        value, gradient = value_and_gradient(problem, theta)
        return SCALE * value, SCALE * gradient

    bounds = list(zip(*problem.bounds, strict=True))
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 20000, "maxcor": 20}
    found = scipy_part("optimize").minimize(scaled, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x, dtype=np.float64)
