"""The fitted laws of fit.json, evaluated: the curves of the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Law = Mapping[str, Any]  # alpha, beta, E, A, B (and R_N, R_D): numbers, or arrays of bootstrap draws that broadcast


def of_fit(fit: Mapping[str, Any]) -> Law:
    """The fit's parameters; a term that its form does not have is 0 with exponent 1."""
    terms = {"A": 0.0, "alpha": 1.0, "B": 0.0, "beta": 1.0}
    law = {name: missing if fit.get(name) is None else fit[name] for name, missing in terms.items()}
    return {**law, "E": fit["E"], **{name: fit[name] for name in ("R_N", "R_D") if fit.get(name) is not None}}


def loss_at(law: Law, n: Any, d: Any, u: Any = None) -> Any:
    """E + A / N^alpha + B / D^beta in nats per token (Hoffmann et al. 2022, eq. 2; Gadre et al. 2024 is alpha = beta).

    With R_N and R_D and unique tokens u: N and D as Muennighoff et al. 2023 (eq. 5, appendix A) discount what repeats.
    """
    if u is not None and "R_D" in law:
        n, d = _discounted(law, n, d, u)
    return law["E"] + law["A"] * n ** -law["alpha"] + law["B"] * d ** -law["beta"]


def frontier(law: Law, flops: Any, per_product: float) -> Any:
    """The lowest loss that `flops` buy, where C = per_product N D: N_opt = G (C / per_product)^(beta/(alpha+beta))."""
    a = law["beta"] / (law["alpha"] + law["beta"])
    n = _ratio(law) * (flops / per_product) ** a
    return loss_at(law, n, flops / per_product / n)


def has_frontier(law: Law) -> bool:
    """False of a law of one axis, where the other costs but does not help."""
    return bool(law["A"] and law["B"])


def _ratio(law: Law) -> Any:
    return (law["alpha"] * law["A"] / (law["beta"] * law["B"])) ** (1 / (law["alpha"] + law["beta"]))


def _discounted(law: Law, n: Any, d: Any, u: Any) -> tuple[Any, Any]:
    import numpy as np

    ratio = _ratio(law)
    # parameters that are compute-optimal for u tokens; more of them than that count less and less
    enough = np.minimum(n, ratio * (u * ratio) ** (law["beta"] / law["alpha"]))
    data = u * (1 - law["R_D"] * np.expm1(-(d / u - 1) / law["R_D"]))
    return enough * (1 - law["R_N"] * np.expm1(-(n / enough - 1) / law["R_N"])), data
