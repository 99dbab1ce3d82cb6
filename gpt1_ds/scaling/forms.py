"""Forms of loss against parameters N and tokens D, and how far points are from them.

All are E + A / N^alpha + B / D^beta with some of the five tied or gone:

    chinchilla   all five free                                       arXiv 2203.15556, approach 3
    gadre        alpha = beta; plain least squares on the loss       arXiv 2403.08540
    power_n      E + A / N^alpha                                     one axis, with irreducible loss
    power_d      E + B / D^beta
    repeated     chinchilla in effective N' and D' (repeated.py)     arXiv 2305.16264

Inside, x = log N and y = log D are centred at the points' mean, and the scales are a = log A - alpha mean(x),
b = log B - beta mean(y): logs of the terms in nats at the middle of the data, nearly uncorrelated with the exponents.

Shapes: S fits side by side, P points, F free parameters.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpt1_ds.scaling.points import Floats

PARAMETERS = ("alpha", "beta", "a", "b", "E")
EXPONENTS = (0.01, 3.0)  # bounds of alpha and beta; published ones lie between 0.05 and 0.7
DELTA = 1e-3  # Huber's threshold on the residual of log loss
LOSSES = ("huber", "l2")


@dataclasses.dataclass(frozen=True)
class Form:
    """`free` names the parameters that are fitted; `tied` the pairs (parameter, the free one it equals)."""

    name: str
    free: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()
    default_loss: str = "huber"

    @property
    def spread(self) -> Floats:
        """(5, F): which of the five each free parameter sets."""
        matrix = np.zeros((5, len(self.free)))
        for column, name in enumerate(self.free):
            matrix[PARAMETERS.index(name), column] = 1
        for name, source in self.tied:
            matrix[PARAMETERS.index(name), self.free.index(source)] = 1
        return matrix

    @property
    def fixed(self) -> Floats:
        """(5,): what is added to the spread: -inf for the log of a term that is not there."""
        base = np.zeros(5)
        for scale, exponent in (("a", "alpha"), ("b", "beta")):
            if scale not in self.free:
                base[PARAMETERS.index(scale)] = -np.inf
                base[PARAMETERS.index(exponent)] = 1.0
        return base

    def five(self, theta: Floats) -> Floats:
        """Returns (..., F) -> (..., 5)."""
        return theta @ self.spread.T + self.fixed


FORMS = {
    form.name: form
    for form in (
        Form("chinchilla", PARAMETERS),
        Form("gadre", ("alpha", "a", "b", "E"), (("beta", "alpha"),), "l2"),
        Form("power_n", ("alpha", "a", "E")),
        Form("power_d", ("beta", "b", "E")),
        Form("repeated", PARAMETERS),
    )
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Points, a form and a loss function: what a fit minimises."""

    form: Form
    x: Floats  # (P,) centred log N
    y: Floats  # (P,) centred log D
    loss: Floats  # (P,) nats per token
    kind: str  # huber or l2
    centre: tuple[float, float]

    @property
    def in_logs(self) -> bool:
        """Residuals are of log loss; of the loss itself for plain least squares in gadre's form."""
        return not (self.form.name == "gadre" and self.kind == "l2")

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Lowest and highest (F,) of the free parameters; E may not reach the lowest loss."""
        least, most = float(self.loss.min()), float(self.loss.max())
        low = {"alpha": EXPONENTS[0], "beta": EXPONENTS[0], "a": np.log(1e-9), "b": np.log(1e-9), "E": 0.0}
        top = np.log(100 * most)
        high = {"alpha": EXPONENTS[1], "beta": EXPONENTS[1], "a": top, "b": top, "E": least * (1 - 1e-9)}
        free = self.form.free
        return np.array([low[name] for name in free]), np.array([high[name] for name in free])

    def terms(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns (S, F) -> the N term, the D term and the loss, each (S, P), in nats."""
        alpha, beta, a, b, E = (column[..., None] for column in np.moveaxis(self.form.five(theta), -1, 0))
        of_n, of_d = np.exp(a - alpha * self.x), np.exp(b - beta * self.y)
        return of_n, of_d, E + of_n + of_d

    def residuals(self, theta: Floats) -> tuple[Floats, Floats]:
        """Returns (S, F) -> residuals (S, P) and their derivatives (S, P, F)."""
        of_n, of_d, predicted = self.terms(theta)
        five = np.stack([-self.x * of_n, -self.y * of_d, of_n, of_d, np.ones_like(of_n)], axis=-1)
        slopes = five @ self.form.spread
        if self.in_logs:
            return np.log(predicted / self.loss), slopes / predicted[..., None]
        return predicted - self.loss, slopes

    def residuals_only(self, theta: Floats) -> Floats:
        predicted = self.terms(theta)[2]
        return np.log(predicted / self.loss) if self.in_logs else predicted - self.loss

    def cost(self, residuals: Floats) -> Floats:
        """Returns huber's function of each residual, or half its square."""
        return huber(residuals) if self.kind == "huber" else 0.5 * residuals**2

    def influence(self, residuals: Floats) -> Floats:
        """Returns the derivative of `cost`."""
        return np.clip(residuals, -DELTA, DELTA) if self.kind == "huber" else residuals

    def objective(self, theta: Floats, weights: Floats | None = None) -> Floats:
        """Returns (S, F) -> (S,): the sum over points, each `weights` (S, P) times."""
        cost = self.cost(self.residuals_only(theta))
        return np.asarray((cost if weights is None else weights * cost).sum(-1))

    def named(self, theta: Floats) -> dict[str, Floats]:
        """Returns (..., F) -> alpha, beta, E, A, B (...,) of the form as it is written, of those that the form has."""
        alpha, beta, a, b, E = np.moveaxis(self.form.five(theta), -1, 0)
        values = {"alpha": alpha, "beta": beta, "E": E}
        values |= {"A": np.exp(a + alpha * self.centre[0]), "B": np.exp(b + beta * self.centre[1])}
        gone = {"power_n": ("beta", "B"), "power_d": ("alpha", "A")}.get(self.form.name, ())
        return {name: value for name, value in values.items() if name not in gone}


def problem(form: str, n: Floats, d: Floats, loss: Floats, kind: str | None = None) -> Problem:
    """Returns the problem of points (P,) each; `kind` is the form's own loss function by default."""
    x, y = np.log(n), np.log(d)
    centre = (float(x.mean()), float(y.mean()))
    chosen = FORMS[form]
    return Problem(chosen, x - centre[0], y - centre[1], loss, kind or chosen.default_loss, centre)


def huber(residuals: Floats) -> Floats:
    """Returns half the square up to DELTA, linear beyond."""
    size = np.abs(residuals)
    return np.where(size <= DELTA, 0.5 * residuals**2, DELTA * (size - 0.5 * DELTA))


def loss_at(values: dict[str, Floats], n: Floats | float, d: Floats | float) -> Floats:
    """Returns E + A / N^alpha + B / D^beta with the terms that `values` has, in nats per token."""
    total = values["E"]
    if "A" in values:
        total = total + values["A"] * np.power(n, -values["alpha"])
    if "B" in values:
        total = total + values["B"] * np.power(d, -values["beta"])
    return np.asarray(total)


def balance(alpha: Floats, beta: Floats, A: Floats, B: Floats) -> Floats:
    """Returns G of arXiv 2203.15556, equation 4: N = G (N D)^(beta / (alpha + beta)) has the least loss for its N D."""
    return np.asarray((alpha * A / (beta * B)) ** (1 / (alpha + beta)))
