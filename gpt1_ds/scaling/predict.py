"""`scaling predict`: what a fit.json says about runs that are not trained yet, each figure with its interval."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.files import sha256_file
from gpt1_ds.scaling import checks
from gpt1_ds.scaling.bootstrap import interval
from gpt1_ds.scaling.laws import MOST_TOKENS, compute_optimal, frontier, predicted_loss, tokens_for
from gpt1_ds.scaling.points import FRESH_EPOCHS, Floats
from gpt1_ds.scaling.repeated import BASE, RETURNS


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fit.json: its form, its `values`, the `samples` (S,) of their draws, and all of it as `record`."""

    form: str
    values: Mapping[str, float]
    samples: Mapping[str, Floats]
    record: Mapping[str, Any]
    is_stale: bool = False  # the results.csv beside it is not the one that was fitted


@dataclasses.dataclass(frozen=True)
class Query:
    """Holds what is asked: parameters, tokens, unique tokens, FLOPs, a loss in nats per token; None is not given."""

    n: float | None = None
    d: float | None = None
    u: float | None = None
    flops: float | None = None
    target: float | None = None


def read_fit(file: Path) -> Fit:
    """Returns a fit.json. Raises DataError for a file that is missing, no fit or of a newer format."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["format"] > 1:
            raise DataError(f"{file}: format {record['format']} is newer than 1; use a newer gpt1-ds")
        samples = {name: np.array(draws) for name, draws in record["bootstrap"]["samples"].items()}
        values = {name: float(record[name]) for name in (*BASE, *RETURNS) if name in record}
        return Fit(record["form"], values, samples, record, _is_stale(file, record.get("data") or {}))
    except FileNotFoundError:
        raise DataError(f"{file}: is not here; make it with gpt1-ds scaling fit") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: is no fit.json of scaling fit ({error!r}); make it again") from None


def _is_stale(file: Path, data: Mapping[str, Any]) -> bool:
    results = file.with_name("results.csv")
    if Path(str(data.get("file", ""))).name != results.name or "sha256" not in data or not results.exists():
        return False
    return bool(data["sha256"] != sha256_file(results))


def predict_with(fit: Fit, question: Query) -> dict[str, Any]:
    """Returns everything the question's figures allow: `loss`, `epoch`, `optimal`, `tokens_for_target`, and `warnings`.

    Figures are {"value": .., "interval": [low, high] or None}, from the draws of the bootstrap: of the law, without
    the noise of a single run. Raises ConfigError where the figures do not make a question that the form can answer.
    """
    _check(fit, question)
    result: dict[str, Any] = {"form": fit.form, "convention": fit.record.get("convention"), "warnings": []}
    warnings = result["warnings"]
    n, d = question.n, question.d
    if fit.form == "power_d":  # the other axis does not count
        n = fit.record["range"]["n"][1]
    elif fit.form == "power_n":
        d = fit.record["range"]["d"][1]
    if question.flops is not None and n is not None and d is None:
        d = question.flops / (6 * n)
    elif question.flops is not None and d is not None and n is None:
        n = question.flops / (6 * d)
    elif question.flops is not None and n is None and question.target is None:
        result["optimal"] = _optimal(fit, question.flops)
        n, d = (result["optimal"][name]["value"] for name in ("n", "d"))
        if not max(n, d) <= MOST_TOKENS:  # then the other one is less than nothing
            alpha, beta = fit.values["alpha"], fit.values["beta"]
            raise DataError(
                f"--flops={question.flops:g}: the law has no best size for it (alpha {alpha:.3g}, beta {beta:.3g}: see "
                "the warnings of its fit); give --params and --tokens, or fit more sizes and token budgets"
            )
        result["loss"] = result["optimal"]["loss"]
    if n is not None and question.target is not None:
        result["tokens_for_target"] = _target(fit, n, question.target, warnings)
    if n is not None and d is not None:
        u = d if question.u is None else min(question.u, d)
        result |= {"n": n, "d": d, "u": u, "flops": 6 * n * d}
        result.setdefault("loss", _figure(fit, lambda v: predicted_loss(fit.form, v, n, d, u)[:, 0]))
        if question.u is not None:
            result["epoch"] = _another_epoch(fit, n, d, question.u, warnings)
        result["extrapolation"] = checks.outside(result, fit.record["range"])
        warnings += checks.far(result, fit.record["range"])
    if fit.is_stale:
        warnings.append("the fit is of another results.csv than the one beside it; make it again with scaling fit")
    warnings += fit.record["warnings"]
    return result


def _check(fit: Fit, question: Query) -> None:
    given = {name: getattr(question, name) for name in ("n", "d", "u", "flops", "target")}
    options = {"n": "--params", "d": "--tokens", "u": "--unique", "flops": "--flops", "target": "--target-loss"}
    problems = [
        f"{options[key]}={value}: give a positive number, up to {MOST_TOKENS:g}"
        for key, value in given.items()
        if value is not None and not 1 / MOST_TOKENS <= value <= MOST_TOKENS
    ]
    has = {name for name, value in given.items() if value is not None}
    both = fit.form not in ("power_n", "power_d")
    enough = [{"n", "d"}, {"flops"}, {"n", "target"}] if both else [{"d"} if fit.form == "power_d" else {"n"}]
    if fit.form == "power_d":
        enough.append({"target"})
    if not any(wanted <= has for wanted in enough):
        forms = " or ".join(" with ".join(sorted(options[name] for name in wanted)) for wanted in enough)
        problems.append(f"nothing to predict with form {fit.form}: give {forms}")
    elif "target" in has and "n" not in has and both:
        problems.append("--target-loss: give --params, the size of the model that is to reach it")
    if {"n", "d", "flops"} <= has:
        problems.append("--flops: follows from --params and --tokens (C = 6ND); leave one of the three out")
    if {"flops"} <= has and not both:
        problems.append(f"--flops: form {fit.form} has one axis and no compute-optimal point; fit --form chinchilla")
    if "target" in has and fit.form == "power_n":
        problems.append("--target-loss: form power_n has no axis of tokens; leave it out, or fit --form power_d")
    ConfigError.raise_all(problems)


def _figure(fit: Fit, rule: Any) -> dict[str, Any]:
    """`rule` of the values, and the middle 95 % of it over the draws."""
    samples = np.asarray(rule(fit.samples)) if fit.samples else None
    value = float(np.ravel(rule(fit.values))[0])
    bounds = None
    if samples is not None:
        low, high = (
            interval(samples)
            if np.isfinite(samples).all()
            else (float(np.quantile(samples, q, method="nearest")) for q in (0.025, 0.975))  # no mean with inf
        )
        bounds = [low, high]
    return {"value": value, "interval": bounds}


def _optimal(fit: Fit, flops: float) -> dict[str, Any]:
    """Returns the compute-optimal N and D, and the loss there, for C = 6 N D."""
    return {
        "flops": flops,
        "rule": "C = 6ND",
        "n": _figure(fit, lambda v: compute_optimal(v, flops)[0]),
        "d": _figure(fit, lambda v: compute_optimal(v, flops)[1]),
        "loss": _figure(fit, lambda v: frontier(v, flops)[:, 0]),
    }


def _target(fit: Fit, n: float, target: float, warnings: list[str]) -> dict[str, Any]:
    """Returns fresh tokens to the target; None stands for more than any number of them."""
    found = _figure(fit, lambda v: tokens_for(fit.form, v, n, target))
    low, high = found["interval"] or (found["value"], found["value"])
    if math.isinf(found["value"]):
        floor = _figure(fit, lambda v: predicted_loss(fit.form, v, n, MOST_TOKENS, MOST_TOKENS)[:, 0])["value"]
        warnings.append(f"a loss of {target:.4g} is out of reach of N = {n:.4g}: endless data ends at {floor:.4g}")
    elif math.isinf(high):
        warnings.append("the interval of the tokens has no upper end: some draws never reach this loss")
    value, low, high = (None if math.isinf(number) else number for number in (found["value"], low, high))
    return {"target": target, "n": n, "value": value, "interval": [low, high] if found["interval"] else None}


def _another_epoch(fit: Fit, n: float, d: float, u: float, warnings: list[str]) -> dict[str, Any]:
    """Returns what U more tokens lower the loss by: seen again, and if they were new (nats per token)."""

    def gain(unique: float) -> dict[str, Any]:
        def lowered(v: Any) -> Floats:
            before = predicted_loss(fit.form, v, n, d, min(u, d))[:, 0]
            return before - predicted_loss(fit.form, v, n, d + u, unique)[:, 0]

        return _figure(fit, lowered)

    epochs = d / u
    result: dict[str, Any] = {"epochs": epochs, "more_tokens": u, "gain": None}
    if fit.form == "repeated":
        result["gain"] = gain(u)
    else:
        words = "counts a repeated token as a new one: what follows is a bound from above"
        warnings.append(f"the fit (form {fit.form}) has no repetition term and {words}; fit --form repeated")
        if epochs + 1 > FRESH_EPOCHS:
            warnings.append(
                f"after {FRESH_EPOCHS:.0f} epochs repeated tokens are worth clearly less (arXiv 2305.16264)"
            )
    result["gain_if_new"] = gain(min(u, d) + u)
    noise = fit.record.get("noise")
    if noise and result["gain"]:
        result["noise_nats"] = noise["relative_std"] * float(
            predicted_loss(fit.form, fit.values, n, d, min(u, d))[0, 0]
        )
        result["worth_it"] = bool(result["gain"]["value"] > 2 * result["noise_nats"])
    return result
