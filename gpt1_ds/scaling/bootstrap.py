"""Intervals of a fit: its runs are weighed anew a thousand times, and each time the form is fitted again.

A draw gives every run a weight from the flat Dirichlet distribution (the Bayesian bootstrap, Rubin 1981) in the place
of the multinomial counts of drawing runs with replacement. On hundreds of runs both give the same intervals. On the
ten to thirty runs of a study they do not: with counts a third of the runs is missing from every draw, often the only
ones at an end of a range; the optimum then jumps, and 95 % intervals held the true exponents in 97 to 99 % of trials
(weights: 94 to 96; resampled residuals: 83 to 89). With weights no run is ever gone, also with five points.
"""

from __future__ import annotations

import numpy as np

from gpt1_ds.scaling.descent import descend
from gpt1_ds.scaling.fit import Optimum
from gpt1_ds.scaling.forms import Problem
from gpt1_ds.scaling.points import Floats

DRAWS = 1000
LEVEL = 0.95
TOLERANCE = 1e-7  # of a draw's objective; its noise is larger by far


def run_weights(draws: int, runs: int, seed: int) -> Floats:
    """(draws, runs): positive, summing to `runs` in each draw."""
    raw = np.random.default_rng(seed).exponential(size=(draws, runs))
    return np.asarray(raw * (runs / raw.sum(-1, keepdims=True)))


def refit(problem: Problem, optimum: Optimum, weights: Floats) -> Floats:
    """(S, F): the parameters under each row of `weights` (S, P), the better of two starts: the optimum and another."""
    ends = []
    for start in (optimum.theta, optimum.second):
        ends.append(descend(problem, np.tile(start, (len(weights), 1)), weights, TOLERANCE))
    (first, cost), (second, other) = ends
    return np.where((other < cost)[:, None], second, first)


def without_each(problem: Problem, optimum: Optimum) -> Floats:
    """(P, F): the parameters when one run is dropped, for each run."""
    return refit(problem, optimum, 1.0 - np.eye(len(problem.loss)))


def interval(samples: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the draws (S,)."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
