"""What points can tell of a law: how well they separate its parameters, how far they may be off, which points stand
out.

The Jacobian of the residuals at the optimum, its columns scaled to one length, has a condition number of 20 to 1,500
with points that span a decade of N, D and D/N. With two sizes, one ratio of D to N, or sizes that are alike, it has no
full rank: a direction in which the parameters move and no loss does.

Shapes: S draws, P points, F free parameters.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpt1_ds.scaling.fit import Optimum
from gpt1_ds.scaling.forms import Problem
from gpt1_ds.scaling.points import Floats

USUAL = 1e4  # a larger condition number: the points do not separate some parameters
ROUNDING = 1e-4  # of a loss, relative: fewer digits are written, and no run repeats more of them under another seed
FAR_OFF = 6.0  # robust standard deviations: of 1e8 points with normal noise, one


@dataclasses.dataclass(frozen=True)
class Identification:
    """`condition` of the scaled Jacobian; `errors` (F,), the standard deviation of each free parameter where losses are
    known to ROUNDING; `steps` (F, F), whose rows times normal numbers are such deviations.
    """

    condition: float
    errors: Floats
    steps: Floats

    @property
    def is_full(self) -> bool:
        return self.condition <= USUAL


def identification(problem: Problem, optimum: Optimum) -> Identification:
    """Returns what the points of a problem tell of its parameters, near the optimum."""
    slopes_PF = problem.residuals(optimum.theta[None])[1][0]
    lengths_F = np.maximum(np.linalg.norm(slopes_PF, axis=0), 1e-300)
    _, values_F, turned_FF = np.linalg.svd(slopes_PF / lengths_F, full_matrices=False)
    values_F = np.maximum(values_F, 1e-16 * values_F[0])
    sigma = ROUNDING if problem.in_logs else ROUNDING * float(problem.loss.mean())
    steps_FF = sigma * turned_FF / values_F[:, None] / lengths_F
    return Identification(float(values_F[0] / values_F[-1]), np.linalg.norm(steps_FF, axis=0), steps_FF)


def widened(problem: Problem, found: Identification, samples: Floats, seed: int) -> Floats:
    """Returns (S, F): draws that lie as far apart as losses known to ROUNDING allow, at least; as they are where they
    do.

    Weighing runs anew shows no doubt where the noise is less than that, or where all runs leave a parameter open.
    """
    if not len(samples) or not (found.errors > samples.std(axis=0)).any():
        return samples
    normal_SF = np.random.default_rng([seed, 1]).standard_normal(samples.shape)
    low, high = problem.bounds
    return np.clip(samples + normal_SF @ found.steps, low, high)


def outliers(problem: Problem, optimum: Optimum) -> tuple[int, ...]:
    """Returns the numbers of the points that lie FAR_OFF from the law, by the median distance. As many points as there
    are parameters do not count for it: the law bends to them, and on few points most distances would be zero.
    """
    distance_P = np.abs(problem.residuals_only(optimum.theta[None])[0])
    least = ROUNDING if problem.in_logs else ROUNDING * float(problem.loss.mean())
    judged = np.sort(distance_P)[len(optimum.theta) :]
    scale = max(1.4826 * float(np.median(judged)), least)  # of normal noise, its standard deviation
    return tuple(int(number) for number in np.flatnonzero(distance_P > FAR_OFF * scale))
