"""From points to fitted values and their draws, for every form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.scaling import bootstrap
from gpt1_ds.scaling.fit import Optimum, fit
from gpt1_ds.scaling.forms import FORMS, Problem, problem
from gpt1_ds.scaling.points import Floats, Point, column
from gpt1_ds.scaling.repeated import BASE, BOUNDS, RETURNS, Profile, Runs, fit_returns, objective, profile


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
    profile: Profile | None = None


def solve(form: str, points: Sequence[Point], loss: str, draws: int, seed: int, at: Mapping[str, float]) -> Solution:
    """Fit `form` to `points`. `at` gives parameters of `repeated` that are not to be fitted: A, B, E, alpha and beta
    together, or these with R_D and R_N, when the objective there is all that is computed.
    """
    if form == "repeated":
        return _solve_repeated(points, loss, draws, seed, at)
    posed = _pose(form, points, loss)
    optimum = fit(posed)
    weights = bootstrap.run_weights(draws, len(points), seed)
    samples = posed.named(bootstrap.draw(posed, optimum, weights)) if draws else {}
    return _solution(posed, optimum, samples)


def _pose(form: str, points: Sequence[Point], loss: str) -> Problem:
    return problem(form, column(points, "n"), column(points, "d"), column(points, "loss"), loss)


def _solution(posed: Problem, optimum: Optimum, samples: Mapping[str, Floats]) -> Solution:
    low, high = posed.bounds
    pressed = (optimum.theta <= low + 1e-9) | (optimum.theta >= high * (1 - 1e-9))
    written = {"a": "A", "b": "B"}
    return Solution(
        values={name: float(value) for name, value in posed.named(optimum.theta).items()},
        samples=samples,
        objective=optimum.objective,
        starts=optimum.objectives,
        agreeing=optimum.agreeing,
        at_bounds=tuple(written.get(name, name) for name, at in zip(posed.form.free, pressed, strict=True) if at),
        dropped_E=posed.named(bootstrap.without_each(posed, optimum))["E"],
    )


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
        fitted, samples = _fit_base([point for point in points if point.epochs <= 1], loss, weights[:, fresh])
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


def _fit_base(fresh: Sequence[Point], loss: str, weights: Floats) -> tuple[Solution, dict[str, Floats]]:
    """A, B, E, alpha and beta from the points that repeat nothing, and their draws."""
    sizes, budgets = len({point.n for point in fresh}), len({point.d for point in fresh})
    if len(fresh) <= len(FORMS["repeated"].free) or sizes < 2 or budgets < 2:
        way_out = "add such runs, or give --at alpha=..,beta=..,E=..,A=..,B=.."
        raise DataError(
            f"form=repeated: {len(fresh)} points of one epoch with {sizes} N and {budgets} D do not give E, A, B and "
            f"the exponents; {way_out}"
        )
    posed = _pose("repeated", fresh, loss)
    optimum = fit(posed)
    samples = posed.named(bootstrap.draw(posed, optimum, weights)) if len(weights) else {}
    return _solution(posed, optimum, samples), samples
