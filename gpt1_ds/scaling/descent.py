"""Many small fits side by side: Levenberg-Marquardt on reweighted least squares, for the draws of a bootstrap.

Huber's function is majorised at each residual r by a parabola of weight min(1, delta / |r|), so every accepted step
lowers the true objective. Far from any optimum this is Gauss-Newton, which does not mind that exponent, scale and E
are nearly collinear, where quasi-Newton stops early, as it did in published fits.
"""

from __future__ import annotations

import numpy as np

from gpt1_ds.scaling.forms import DELTA, Problem
from gpt1_ds.scaling.points import Floats

ITERATIONS = 400
DAMPING = (1e-12, 1e10)


def descend(
    problem: Problem, theta: Floats, weights: Floats, tolerance: float = 1e-9, iterations: int = ITERATIONS
) -> tuple[Floats, Floats]:
    """Lower the objective of S fits from `theta` (S, F), where point p counts `weights` (S, P) times.

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
    """One damped Gauss-Newton step (S, F) of each fit; parameters pressed against a bound stay."""
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
