"""Intervals of a fit: its runs are weighed anew a thousand times, and each time the form is fitted again.

A draw gives every run a weight from the flat Dirichlet distribution (the Bayesian bootstrap, Rubin 1981) in the place
of the multinomial counts of drawing runs with replacement. On hundreds of runs both give the same intervals. On the
ten to thirty of a study counts leave a third of the runs out of every draw, often the only ones at an end of a range,
and the optimum jumps; with weights no run is ever gone, also with five points.

Draws of few runs lie too close together, as the form bends to their noise, so they are stretched about the optimum.
P runs and F parameters leave P - F degrees of freedom. Least squares: by sqrt(P / (P - F)) and Student's quantile over
the normal one, as in linear regression. Huber (mostly absolute residuals): by 1 + 25 / (P - F)^3, a rule measured, not
derived, that is 1.4 with 9 runs, 1.02 with 16 and nothing beyond. Share of 200 random laws (noise 0.3 %) whose alpha
and beta lie in the 95 % interval (tools/scaling_coverage.py measures the first two lines; the rule was chosen on the
same kind of laws):

    runs                        9           16          20          30          36          96
    huber                    .89 .92     .97 .96     .98 .94     .96 .97                 .99 .93
    l2                                   .94 .94                             .96 .93
    huber, not stretched     .83 .85     .96 .94
    l2, not stretched                    .84 .81                             .93 .86
    huber, runs replaced                 .98 .98     .97 .99     .97 .98                 .96 .98
"""

from __future__ import annotations

import math

import numpy as np

from gpt1_ds.scaling.fit import Optimum, descend, scipy_part
from gpt1_ds.scaling.forms import Problem
from gpt1_ds.scaling.points import Floats

DRAWS = 1000
LEVEL = 0.95
FREEDOM = 3  # degrees of freedom that a correction counts at least: below, intervals say nothing anyway
TINY = 1e-300  # in the place of zero
TOLERANCE = 1e-7  # of a draw's objective; its noise is larger by far


def run_weights(draws: int, runs: int, seed: int) -> Floats:
    """Returns (draws, runs): positive, summing to `runs` in each draw."""
    raw = np.random.default_rng(seed).exponential(size=(draws, runs))
    return np.asarray(raw * (runs / raw.sum(-1, keepdims=True)))


def draw(problem: Problem, optimum: Optimum, weights: Floats) -> Floats:
    """Returns (S, F): one draw of the parameters for each row of `weights` (S, P)."""
    return stretched(problem, optimum, refit(problem, optimum, weights))


def refit(problem: Problem, optimum: Optimum, weights: Floats) -> Floats:
    """Returns (S, F): the parameters under each row of `weights` (S, P), the better of two starts: the optimum and
    another.
    """
    ends = []
    for start in (optimum.theta, optimum.second):
        ends.append(descend(problem, np.tile(start, (len(weights), 1)), weights, TOLERANCE))
    (first, cost), (second, other) = ends
    return np.where((other < cost)[:, None], second, first)


def stretched(problem: Problem, optimum: Optimum, samples: Floats) -> Floats:
    """Returns (S, F): draws of `refit` with the small-sample correction, inside the problem's bounds.

    The terms of N and D are stretched in nats, and a draw no further than to the first bound: stretched in logs, or cut
    at the bounds one parameter at a time, a law would leave the points that it was drawn from.
    """
    P, F = len(problem.loss), len(optimum.theta)
    freedom = max(P - F, FREEDOM)
    factor = 1 + 25 / freedom**3
    if problem.kind == "l2":
        special = scipy_part("special")
        student = special.stdtrit(freedom, (1 + LEVEL) / 2) / special.ndtri((1 + LEVEL) / 2)
        factor = student * math.sqrt(P / freedom)
    is_log_F = np.isin(problem.form.free, ("a", "b"))
    low_F, high_F, centre_F, samples_SF = (
        np.where(is_log_F, np.exp(theta), theta) for theta in (*problem.bounds, optimum.theta, samples)
    )
    away_SF = samples_SF - centre_F
    room_SF = np.where(away_SF > 0, high_F - centre_F, centre_F - low_F) / np.maximum(np.abs(away_SF), TINY)
    factor_S1 = np.clip(room_SF.min(axis=-1, keepdims=True), 1.0, factor)
    stretched_SF = np.clip(centre_F + factor_S1 * away_SF, low_F, high_F)
    return np.asarray(np.where(is_log_F, np.log(np.maximum(stretched_SF, TINY)), stretched_SF))


def without_each(problem: Problem, optimum: Optimum) -> Floats:
    """Returns (P, F): the parameters when one run is dropped, for each run."""
    return refit(problem, optimum, 1.0 - np.eye(len(problem.loss)))


def interval(samples: Floats) -> tuple[float, float]:
    """Returns the middle LEVEL of the draws (S,)."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
