"""A fitted law, one or many at once: the loss it gives and what follows from it.

`values` maps alpha, beta, E, A, B (R_D, R_N) to a number or to the draws (S,) of a bootstrap; sizes N, tokens D and
unique tokens U are (P,) or one for all points. Compute is C = k N D, with k = 6 where nothing else is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gpt1_ds.scaling.forms import balance, loss_at
from gpt1_ds.scaling.points import Floats
from gpt1_ds.scaling.repeated import repeated_loss

Values: TypeAlias = Mapping[str, ArrayLike]
MOST_TOKENS = 1e30  # as many as any: where a model that never reaches a loss ends


def predicted_loss(form: str, values: Values, n: ArrayLike, d: ArrayLike, u: ArrayLike) -> Floats:
    """Returns (S, P) loss in nats per token; S is 1 for plain numbers."""
    n, d, u = np.broadcast_arrays(*(_many(value) for value in (n, d, u)))
    draws = {name: _many(value)[:, None] for name, value in values.items()}
    loss = repeated_loss(draws, n, d, np.minimum(u, d)) if form == "repeated" else loss_at(draws, n, d)
    return np.broadcast_to(loss, (len(draws["E"]), len(n)))


def exponents(values: Values) -> dict[str, Floats]:
    """Returns a and b: compute-optimal N grows as C^a, D as C^b."""
    alpha, beta = np.asarray(values["alpha"]), np.asarray(values["beta"])
    return {"a": beta / (alpha + beta), "b": alpha / (alpha + beta)}


def compute_optimal(values: Values, flops: ArrayLike, k: float = 6.0) -> tuple[Floats, Floats]:
    """Returns N and D of the least loss among those with k N D = `flops`."""
    alpha, beta, A, B = (np.asarray(values[name], dtype=np.float64) for name in ("alpha", "beta", "A", "B"))
    product = np.asarray(flops, dtype=np.float64) / k
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        n = balance(alpha, beta, A, B) * product ** (beta / (alpha + beta))
        return np.asarray(n), np.asarray(product / n)


def frontier(values: Values, flops: ArrayLike, k: float = 6.0) -> Floats:
    """Returns (S, P): the least loss that `flops` (P,) buy; not finite for draws at a bound, where there is none."""
    draws = {name: _many(values[name])[:, None] for name in ("alpha", "beta", "E", "A", "B")}
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return loss_at(draws, *compute_optimal(draws, _many(flops), k))


def has_frontier(values: Values) -> bool:
    """Returns False for a law of one axis, where the other costs but does not help."""
    return {"A", "B"} <= set(values)


def tokens_for(form: str, values: Values, n: float, target: float) -> Floats:
    """Returns fresh tokens D at which a model of `n` parameters reaches `target` nats per token; inf where none
    suffice.
    """
    if form == "repeated":
        return _repeated_tokens_for(values, n, target)
    E, B, beta = (np.asarray(values[name], dtype=np.float64) for name in ("E", "B", "beta"))
    left = target - E
    if "A" in values:
        left = left - np.asarray(values["A"]) * n ** -np.asarray(values["alpha"])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.where(left > 0, (B / np.where(left > 0, left, 1.0)) ** (1 / beta), np.inf)


def _repeated_tokens_for(values: Values, n: float, target: float) -> Floats:
    """Returns tokens by halving log D: few tokens make a part of the model useless, too; there is no formula."""
    draws = {name: _many(value)[:, None] for name, value in values.items()}

    def is_above(tokens: Floats) -> Any:
        return repeated_loss(draws, _many(n), tokens, tokens) > target

    low, high = np.zeros_like(draws["E"]), np.full_like(draws["E"], np.log(MOST_TOKENS))
    unreachable = is_above(np.exp(high))
    for _ in range(60):
        middle = (low + high) / 2
        above = is_above(np.exp(middle))
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(unreachable, np.inf, np.exp(high)).reshape(np.shape(values["E"]))


def _many(value: ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(value, dtype=np.float64))
