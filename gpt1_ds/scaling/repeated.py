"""The law of repeated data (arXiv 2305.16264, section 3.1), and the fit of its own two parameters, R_D and R_N.

A token that is seen again is worth less than a new one, a parameter beyond what the data can fill less than the others.
The law is chinchilla's in effective tokens D' and effective parameters N', with U unique tokens among the D:

    L = E + A / N'^alpha + B / D'^beta
    D' = U (1 + R_D (1 - exp(-(D/U - 1) / R_D)))
    N' = U_N (1 + R_N (1 - exp(-(N/U_N - 1) / R_N)))
    U_N = min(N, G (U G)^(beta/alpha)),  G = (alpha A / (beta B))^(1/(alpha+beta))    compute-optimal N for U

R_D is about the number of extra epochs after which more of them bring little. With U = 100 and R_D = 15:

    D     100   200   1000   10000   without end
    D'    100   197    777    1598          1600

As published, A, B, E, alpha and beta come first, from points that repeat nothing (solve.py). Then R_D and R_N follow
here, by Huber on log loss over all points. Their objective is flat, and a descent ends anywhere in it, so they are
searched on a grid of their logs: 24 x 24 over BOUNDS, then 16 times 5 x 5 around the best, ever closer to it.

Shapes: S fits side by side, P points, K values of log R_D and as many of log R_N.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpt1_ds.scaling.forms import balance, huber, loss_at
from gpt1_ds.scaling.points import Floats

BASE = ("alpha", "beta", "E", "A", "B")
RETURNS = ("R_D", "R_N")
BOUNDS = (0.05, 1e4)  # of R_D and R_N; at 10^4 a repeated token is a new one
COARSE, FINE, ROUNDS, SHRINK = 24, 5, 16, 1.5  # slowly: the valley is narrow and runs askew
BLOCK = 8  # fits at a time: their grid stays in cache
PROFILED = 161  # values of R_D and of R_N in a profile
FLAT = 0.01  # of the objective


@dataclasses.dataclass(frozen=True)
class Runs:
    """Points of a repeated fit: parameters, tokens, unique tokens, loss in nats per token, each (P,)."""

    n: Floats
    d: Floats
    u: Floats
    loss: Floats


@dataclasses.dataclass(frozen=True)
class ProfileInterval:
    """Where the objective stays within FLAT of its best while the other of R_D and R_N is the best for it."""

    best: float
    R_D: tuple[float, float]
    R_N: tuple[float, float]
    at: tuple[float, float]  # R_D and R_N of the best


def repeated_loss(values: dict[str, Floats], n: Floats, d: Floats, u: Floats) -> Floats:
    """Returns (S, P) loss of the law at points (P,); every value is (S, 1)."""
    fillable = np.minimum(n, optimal_size(values, u))
    return loss_at(values, diminished(n, fillable, values["R_N"]), diminished(d, u, values["R_D"]))


def optimal_size(values: dict[str, Floats], u: Floats) -> Floats:
    """Returns (S, P) parameters that are compute-optimal for `u` (P,) unique tokens; every value is (S, 1)."""
    alpha, beta, A, B = (values[name] for name in ("alpha", "beta", "A", "B"))
    G = balance(alpha, beta, A, B)
    return np.asarray(G * (u * G) ** (beta / alpha))


def diminished(amount: Floats, unique: Floats, returns: Floats) -> Floats:
    """Returns `unique` and what the rest of `amount` is worth: at most `returns` times as much again. Any shapes that
    fit.
    """
    return unique * (1 - returns * np.expm1(-(amount / unique - 1) / returns))


def objective(values: dict[str, Floats], runs: Runs) -> Floats:
    """Returns (S,): Huber of the residuals of log loss, summed over the points; every value is (S,)."""
    loss = repeated_loss({name: value[:, None] for name, value in values.items()}, runs.n, runs.d, runs.u)
    return np.asarray(huber(np.log(loss / runs.loss)).sum(-1))


def fit_returns(base: dict[str, Floats], runs: Runs, weights: Floats) -> tuple[Floats, Floats]:
    """Fits (R_D, R_N) for each of S values (S,) of the five in `base`, where points count `weights` (S, P) times.

    Returns the best pairs (S, 2) and their objectives (S,).
    """
    pairs, objectives = [], []
    for start in range(0, len(weights), BLOCK):
        block = slice(start, start + BLOCK)
        base_of_block = {name: np.atleast_1d(value)[block] for name, value in base.items()}
        log_pairs, least = _search(base_of_block, runs, weights[block])
        pairs.append(np.exp(log_pairs))
        objectives.append(least)
    return np.concatenate(pairs), np.concatenate(objectives)


def profile(base: dict[str, float], runs: Runs) -> ProfileInterval:
    """Returns how flat the objective is in R_D and in R_N at fixed A, B, E, alpha, beta."""
    base_of_one = {name: np.array([base[name]]) for name in BASE}
    log_axis = np.log(np.geomspace(*BOUNDS, PROFILED))
    weights = np.ones((1, len(runs.loss)))
    grid = _objective_grid(base_of_one, runs, weights, log_axis[None], log_axis[None])[0]
    best = float(grid.min())
    axis, limit = np.exp(log_axis), best * (1 + FLAT)
    intervals = []
    for other in (1, 0):  # the axis of the grid along which the best is taken: that of R_N, then that of R_D
        flat = axis[grid.min(axis=other) <= limit]
        intervals.append((float(flat[0]), float(flat[-1])))
    row, column = np.unravel_index(grid.argmin(), grid.shape)
    at = (float(np.exp(log_axis[row])), float(np.exp(log_axis[column])))
    return ProfileInterval(best, intervals[0], intervals[1], at)


def _search(base: dict[str, Floats], runs: Runs, weights: Floats) -> tuple[Floats, Floats]:
    """Returns the best (log R_D, log R_N) (S, 2) on a grid that closes in on it, and its objective (S,)."""
    low, high = np.log(BOUNDS)
    S = len(weights)
    fits = np.arange(S)
    log_d = log_n = np.tile(np.linspace(low, high, COARSE), (S, 1))
    reach = (high - low) / (COARSE - 1)  # of the next grid, to either side of the best
    for _ in range(ROUNDS + 1):
        grid = _objective_grid(base, runs, weights, log_d, log_n).reshape(S, -1)
        rows, columns = np.divmod(grid.argmin(-1), log_n.shape[1])
        best_d, best_n = log_d[fits, rows], log_n[fits, columns]
        around = np.linspace(-reach, reach, FINE)
        log_d = np.clip(best_d[:, None] + around, low, high)
        log_n = np.clip(best_n[:, None] + around, low, high)
        reach /= SHRINK
    return np.stack([best_d, best_n], -1), grid.min(-1)


def _objective_grid(base: dict[str, Floats], runs: Runs, weights: Floats, log_d: Floats, log_n: Floats) -> Floats:
    """Returns (S, K, K) objectives of every R_D with every R_N; `log_d`, `log_n` (S, K). The two terms are computed
    once for each value, not for each pair.
    """
    alpha, beta, E, A, B = (base[name][:, None, None] for name in BASE)
    fillable = np.minimum(runs.n, optimal_size({name: base[name][:, None] for name in BASE}, runs.u))[:, None]
    term_n = A * diminished(runs.n, fillable, np.exp(log_n)[..., None]) ** -alpha  # (S, K, P)
    term_d = B * diminished(runs.d, runs.u, np.exp(log_d)[..., None]) ** -beta
    residuals = np.log((E + term_d)[:, :, None] + term_n[:, None]) - np.log(runs.loss)  # (S, K, K, P)
    return np.asarray(np.einsum("sklp,sp->skl", huber(residuals), weights))
