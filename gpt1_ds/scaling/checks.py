"""What the points cannot say: fits that are refused, and warnings about those that are not to be believed as they are.

Every warning is one line with the figure that caused it and, where there is one, the way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.text import count
from gpt1_ds.scaling.forms import FORMS
from gpt1_ds.scaling.identification import FAR_OFF, USUAL
from gpt1_ds.scaling.points import Point, Points, column, distinct
from gpt1_ds.scaling.solve import Solution

DECADE = 10.0  # the least range of N, D or D/N that separates exponents
TOGETHER = 1.1  # a span of D over a power of N below which it is that power, rounded
FAR = 10.0  # times the fitted range
FLAT_RATIO = 3.0  # highest over lowest value with about the same objective
NOISES = 2.0  # standard deviations
NAMED = 8  # outliers, at most


def refuse_none(points: Points) -> None:
    """Raises DataError where every point is held out or left out."""
    if not points.fitted:
        gone = {"held out": len(points.rows), **points.left_out}
        counts = ", ".join(f"{number} {reason}" for reason, number in gone.items() if number)
        raise DataError(f"{points.file}: no row is left to judge the law by: {counts}; set held_out=0 for some")


def refuse(form: str, points: Points) -> None:
    """Raises DataError where the points cannot identify the form at all."""
    fitted, where = points.fitted, f"{points.file}: form={form}: "
    free = FORMS[form].free
    sizes, budgets = distinct(fitted, "n"), distinct(fitted, "d")
    if "a" in free and sizes < 2:
        way_out = "train more sizes, or use --form power_d" if budgets > 1 else "train more sizes and token budgets"
        raise DataError(f"{where}all points have one N (to 1 %), so alpha and A are unknown; {way_out}")
    if "b" in free and budgets < 2:
        way_out = "train more token budgets, or use --form power_n" if sizes > 1 else "train more sizes and budgets"
        raise DataError(f"{where}all points have one D (to 1 %), so beta and B are unknown; {way_out}")
    if len(fitted) <= len(free):
        raise DataError(
            f"{where}{len(fitted)} points to fit for {len(free)} parameters; train {len(free) + 1} or more, "
            "3 sizes by 3 token budgets at least"
        )
    if {"a", "b"} <= set(free) and (apart := _apart(fitted)) < TOGETHER:
        raise DataError(
            f"{where}N and D move together (D is within {apart:.3g}x of one power of N), so that their terms are one; "
            "train other ratios of D to N, or use --form power_n"
        )
    if form == "repeated" and all(point.epochs <= 1 for point in fitted):
        raise DataError(f"{where}no point has d > u, so R_D and R_N are unknown; use --form chinchilla")


def _apart(fitted: Sequence[Point]) -> float:
    """Returns the span of D over the power of N that is nearest to it: it is what separates the terms of N and D."""
    x, y = np.log(column(fitted, "n")), np.log(column(fitted, "d"))
    left = y - np.polynomial.Polynomial.fit(x, y, 1)(x)
    return float(np.exp(left.max() - left.min()))


def range_warnings(form: str, points: Points) -> Iterator[str]:
    """Yields warnings of where the points lie."""
    fitted, free = points.fitted, FORMS[form].free
    n, d = column(fitted, "n"), column(fitted, "d")
    sizes, budgets = distinct(fitted, "n"), distinct(fitted, "d")
    both = "a" in free and "b" in free
    if both and (sizes < 3 or budgets < 3 or len(fitted) < 9):
        yield f"{len(fitted)} points of {sizes} N and {budgets} D: fewer than 3 N x 3 D; the exponents are a guess"
    if both and _span(d / n) < DECADE:
        yield f"D/N spans {_span(d / n):.2g}x, less than a decade: alpha and beta are hard to tell apart"
    if "b" in free and _span(d) < DECADE:
        yield f"D spans {_span(d):.2g}x, less than a decade: beta and E are hard to tell apart; add token budgets"
    if form == "power_n" and _span(d) > 1.05:
        yield f"D spans {_span(d):.2g}x, and form=power_n takes it for constant"
    if form == "power_d" and _span(n) > 1.05:
        yield f"N spans {_span(n):.2g}x, and form=power_d takes it for constant"
    if twice := _repeats(fitted):
        yield (
            f"{len(twice)} of {len(fitted)} points repeat N, D, U, seed and loss of another (like {twice[0].cell}); "
            "remove those that are no runs of their own, because they make every interval narrower"
        )
    again = max((point.epochs for point in fitted), default=1.0)
    if form != "repeated" and again > 1.01:
        yield f"tokens are repeated up to {again:.2g} times, counted here as new ones; --form repeated tells them apart"


def _repeats(points: Sequence[Point]) -> list[Point]:
    """Returns the points that equal an earlier one in all but the name."""
    seen: set[Point] = set()
    repeats = []
    for point in points:
        nameless = dataclasses.replace(point, cell="")
        repeats += [point] if nameless in seen else []
        seen.add(nameless)
    return repeats


def solution_warnings(form: str, points: Points, solution: Solution, intervals: Mapping[str, Any]) -> Iterator[str]:
    """Yields warnings of what came out of the fit."""
    E, least = solution.values["E"], min(point.loss for point in points.fitted)
    if solution.agreeing < len(solution.starts):
        count_of, all_of = solution.agreeing, len(solution.starts)
        yield f"only {count_of} of {all_of} starts reached the best objective: there may be a better one"
    if solution.unknown:
        yield (
            f"the points do not tell {', '.join(solution.unknown)}: the condition of the fit is "
            f"{solution.condition:.2g} (up to {USUAL:.0g} is usual), so other values fit as well; add sizes, token "
            "budgets and ratios of both, and do not read these figures"
        )
    yield from _outliers(_judged(form, points), solution)
    if solution.at_bounds:
        yield f"at a bound: {', '.join(solution.at_bounds)}; the points do not fix what lies there"
    if not 0 < E < least * (1 - 1e-6):
        yield f"implausible E = {E:.4g}: it lies outside of 0 to the lowest loss, {least:.4g}"
    if "E" in intervals and (width := intervals["E"][1] - intervals["E"][0]) > E / 2:
        low, high = intervals["E"]
        yield (
            f"implausible E = {E:.3f}: its 95 % interval {low:.3f} to {high:.3f} is {width:.3f} nats wide (more than "
            "E/2): the points lie too far above it to see it; do not extrapolate"
        )
    if solution.dropped_E is not None and len(solution.dropped_E):
        moves = np.abs(solution.dropped_E - E)
        worst = int(moves.argmax())
        if moves[worst] > max(0.2 * E, 0.001):  # at E = 0 any part of it would do
            yield (
                f"E moves by more than 20 %, from {E:.3f} to {solution.dropped_E[worst]:.3f}, when one run "
                f"({_judged(form, points)[worst].cell}) is dropped: it hangs on single runs"
            )
    yield from _flat(solution)


def _judged(form: str, points: Points) -> Sequence[Point]:
    """Returns the points that the five common parameters are fitted to."""
    return points.fitted if form != "repeated" else [point for point in points.fitted if point.epochs <= 1]


def _outliers(points: Sequence[Point], solution: Solution) -> Iterator[str]:
    if not solution.outliers:
        return
    cells = ", ".join(points[number].cell for number in solution.outliers[:NAMED])
    more = f" and {len(solution.outliers) - NAMED} more" if len(solution.outliers) > NAMED else ""
    moves = ", ".join(
        f"{name} {solution.values[name]:.3f} -> {value:.3f}"
        for name, value in solution.without_outliers.items()
        if name in ("alpha", "beta", "E")
    )
    yield (
        f"{len(solution.outliers)} of {len(points)} points lie more than {FAR_OFF:.0f} robust standard deviations off: "
        f"{cells}{more}; without them {moves}"
    )


def _flat(solution: Solution) -> Iterator[str]:
    flat = solution.profile
    if flat is None:
        return
    for name, (low, high), best in (("R_D", flat.R_D, flat.at[0]), ("R_N", flat.R_N, flat.at[1])):
        if high / low > FLAT_RATIO:
            yield (
                f"{name} = {solution.values[name]:.4g} is flat: anywhere from {low:.3g} to {high:.3g} the objective "
                f"stays within 1 % of its best ({flat.best:.6g} at {best:.3g}); do not read it as a figure"
            )


def held_out_warnings(
    held_out: Sequence[Mapping[str, Any]], fit_noise_percent: float, ranges: Mapping[str, Sequence[float]]
) -> Iterator[str]:
    """Yields warnings of predictions that miss what was measured. `fit_noise_percent` is one standard deviation."""
    for row in held_out:
        if abs(row["error_percent"]) > NOISES * fit_noise_percent:
            yield (
                f"{row['cell']}: held-out error {row['error_percent']:+.2f} % is beyond the fit's noise "
                f"(2 x {fit_noise_percent:.2f} %)"
            )
        yield from (f"{row['cell']}: {words}" for words in far(row, ranges))


def outside(target: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns how many times n, d and flops of a target lie outside of what was fitted; 1 inside."""
    return {name: max(1.0, target[name] / high, low / target[name]) for name, (low, high) in ranges.items()}


def far(target: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yields those of n, d and flops of a target that lie more than ten times outside of what was fitted."""
    for name, factor in outside(target, ranges).items():
        if factor > FAR:
            label, write = {"n": ("N", count), "d": ("D", count), "flops": ("C", "{:.3g}".format)}[name]
            low, high = map(write, ranges[name])
            yield f"{label} = {write(target[name])} is {factor:.3g}x outside the fitted range ({low} to {high})"


def _span(values: Any) -> float:
    return float(values.max() / values.min())
