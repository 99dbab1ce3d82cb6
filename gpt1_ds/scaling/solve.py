"""From points to fitted values and their draws, for every form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.scaling import bootstrap
from gpt1_ds.scaling.fit import Optimum, fit
from gpt1_ds.scaling.forms import FORMS, Problem, problem
from gpt1_ds.scaling.identification import identification, outliers, widened
from gpt1_ds.scaling.points import Floats, Point, column, distinct
from gpt1_ds.scaling.repeated import BASE, BOUNDS, RETURNS, ProfileInterval, Runs, fit_returns, objective, profile

UNKNOWN = 0.1  # of its value: what an unidentified parameter may be off by, at least


@dataclasses.dataclass(frozen=True)
class Solution:
    """`values` of the parameters, `samples` (S,) of each, the objective, and what says whether to believe them.

    `starts` are the objectives of all starts, best first, `agreeing` how many are at the optimum; both are of the
    five common parameters for `repeated`. `dropped_E` (P,) is E without each run.
    """

    values: Mapping[str, float]
    samples: Mapping[str, Floats]
    objective: float
    starts: tuple[float, ...] = ()
    agreeing: int = 0
    at_bounds: tuple[str, ...] = ()
    dropped_E: Floats | None = None
    profile: ProfileInterval | None = None
    condition: float | None = None
    unknown: tuple[str, ...] = ()  # parameters that the points do not tell
    outliers: tuple[int, ...] = ()  # numbers of points (of `repeated`, among those that repeat nothing)
    without_outliers: Mapping[str, float] = dataclasses.field(default_factory=dict)  # what would be fitted


def solve(form: str, points: Sequence[Point], loss: str, draws: int, seed: int, at: Mapping[str, float]) -> Solution:
    """Fits `form` to `points`. `at` gives parameters of `repeated` that are not to be fitted: A, B, E, alpha and beta
    together, or these with R_D and R_N, when the objective there is all that is computed.
    """
    if form == "repeated":
        return _solve_repeated(points, loss, draws, seed, at)
    posed = _pose(form, points, loss)
    optimum = fit(posed)
    weights = bootstrap.run_weights(draws, len(points), seed)
    return _solution(posed, optimum, weights, seed)


def _pose(form: str, points: Sequence[Point], loss: str) -> Problem:
    return problem(form, column(points, "n"), column(points, "d"), column(points, "loss"), loss)


def _solution(posed: Problem, optimum: Optimum, weights: Floats, seed: int) -> Solution:
    """Returns `weights` (S, P) of the draws."""
    low, high = posed.bounds
    known, far = identification(posed, optimum), outliers(posed, optimum)
    draws = bootstrap.draw(posed, optimum, weights) if len(weights) else np.empty((0, len(optimum.theta)))
    samples = posed.named(widened(posed, known, draws, seed)) if len(weights) else {}
    left = np.where(np.isin(np.arange(len(posed.loss)), far), 0.0, 1.0)
    without = posed.named(bootstrap.refit(posed, optimum, left[None])) if far else {}
    pressed = (optimum.theta <= low + 1e-9) | (optimum.theta >= high * (1 - 1e-9))
    return Solution(
        values={name: float(value) for name, value in posed.named(optimum.theta).items()},
        samples=samples,
        objective=optimum.objective,
        starts=optimum.objectives,
        agreeing=optimum.agreeing,
        at_bounds=_names(posed, pressed),
        dropped_E=posed.named(bootstrap.without_each(posed, optimum))["E"],
        condition=known.condition,
        unknown=() if known.is_full else _names(posed, known.errors > UNKNOWN * np.abs(optimum.theta)),
        outliers=far,
        without_outliers={name: float(value[0]) for name, value in without.items()},
    )


def _names(posed: Problem, chosen: Any) -> tuple[str, ...]:
    """Returns the free parameters that are `chosen` (F,), as the form is written."""
    written = {"a": "A", "b": "B"}
    return tuple(written.get(name, name) for name, is_one in zip(posed.form.free, chosen, strict=True) if is_one)


def _solve_repeated(points: Sequence[Point], loss: str, draws: int, seed: int, at: Mapping[str, float]) -> Solution:
    runs = Runs(*(column(points, name) for name in ("n", "d", "u", "loss")))
    if set(at) >= {*BASE, *RETURNS}:
        flat = profile(dict(at), runs)
        here = objective({name: np.array([value]) for name, value in at.items()}, runs)
        return Solution(dict(at), {}, float(here[0]), profile=flat)
    weights = bootstrap.run_weights(draws, len(points), seed)
    if at:
        base = {name: np.array([at[name]]) for name in BASE}
        samples = {name: np.full(draws, at[name]) for name in BASE} if draws else {}
        fitted = Solution(dict(at), {}, 0.0)
    else:
        fresh = np.array([point.epochs <= 1 for point in points])
        fitted = _fit_base([point for point in points if point.epochs <= 1], loss, weights[:, fresh], seed)
        samples = dict(fitted.samples)
        base = {name: np.array([fitted.values[name]]) for name in BASE}
    found, reached = fit_returns(base, runs, np.ones((1, len(points))))
    if draws:
        drawn, _ = fit_returns(samples, runs, weights)
        samples |= {name: drawn[:, i] for i, name in enumerate(RETURNS)}
    values = {**fitted.values, **{name: float(found[0, i]) for i, name in enumerate(RETURNS)}}
    edges = tuple(name for name in RETURNS if not BOUNDS[0] * 1.001 < values[name] < BOUNDS[1] / 1.001)
    flat = profile(dict(values), runs)
    return dataclasses.replace(
        fitted,
        values=values,
        samples=samples,
        objective=float(reached[0]),
        at_bounds=fitted.at_bounds + edges,
        profile=flat,
    )


def _fit_base(fresh: Sequence[Point], loss: str, weights: Floats, seed: int) -> Solution:
    """Returns A, B, E, alpha and beta from the points that repeat nothing, and their draws."""
    sizes, budgets = distinct(fresh, "n"), distinct(fresh, "d")
    if len(fresh) <= len(FORMS["repeated"].free) or sizes < 2 or budgets < 2:
        way_out = "add such runs, or give --at alpha=..,beta=..,E=..,A=..,B=.."
        raise DataError(
            f"form=repeated: {len(fresh)} points of one epoch with {sizes} N and {budgets} D do not give E, A, B and "
            f"the exponents; {way_out}"
        )
    posed = _pose("repeated", fresh, loss)
    return _solution(posed, fit(posed), weights, seed)
