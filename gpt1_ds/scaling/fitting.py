"""`scaling fit`: from a CSV to fit.json and predictions.csv, with everything that says whether to believe them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds import __version__
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import sha256_file, write_atomic
from gpt1_ds.scaling import checks
from gpt1_ds.scaling.bootstrap import DRAWS, interval
from gpt1_ds.scaling.fit import scipy_part
from gpt1_ds.scaling.forms import FORMS, LOSSES
from gpt1_ds.scaling.isoflop import isoflop
from gpt1_ds.scaling.laws import exponents, predicted_loss
from gpt1_ds.scaling.points import Floats, Point, Points, column, noise_floor, read_points, without_repetition
from gpt1_ds.scaling.repeated import BASE, RETURNS
from gpt1_ds.scaling.solve import Solution, solve
from gpt1_ds.scaling.tables import write_table

FORMAT = 1
COLUMNS = ("cell", "n", "d", "u", "held_out", "loss", "predicted", "low", "high", "error_percent")
DIGITS = 6  # significant, of bootstrap draws


def fit_file(
    file: Path,
    form: str = "chinchilla",
    loss: str | None = None,
    draws: int = DRAWS,
    at: Mapping[str, float] | None = None,
    seed: int = 0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the content of fit.json and the rows of predictions.csv for the points of a CSV.

    Raises DataError for points that cannot be used or cannot identify the form, ConfigError for a wrong option.
    """
    at = dict(at or {})
    _check_options(form, loss, draws, at)
    points = read_points(file)
    if form != "repeated":
        points = without_repetition(points)
    checks.refuse_none(points)
    if not at:
        checks.refuse(form, points)
    loss = loss or FORMS[form].default_loss
    solution = solve(form, points.fitted, loss, draws, seed, at)
    return _record(form, loss, points, solution, draws, seed, at)


def write_fit(folder: Path, record: Mapping[str, Any], predictions: Sequence[Mapping[str, Any]]) -> None:
    """fit.json and predictions.csv in `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "predictions.csv", COLUMNS, predictions)
    write_atomic(folder / "fit.json", _lists_on_one_line(json.dumps(record, indent=2, ensure_ascii=False)) + "\n")


def _lists_on_one_line(text: str) -> str:
    """Returns indented JSON with each list of numbers on a line of its own: a thousand draws are not a thousand
    lines.
    """
    return re.sub(r"\[\s+([^][{}\"]*?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text)


def _check_options(form: str, loss: str | None, draws: int, at: Mapping[str, float]) -> None:
    problems = []
    if form not in FORMS:
        problems.append(f"--form {form}: is none of {', '.join(FORMS)}; choose one of them")
    if loss not in (None, *LOSSES):
        problems.append(f"--loss {loss}: is neither huber nor l2; choose one of them")
    if draws and draws < 20:
        problems.append(f"--draws {draws}: too few for a 95 % interval; take 20 or more, or 0 for no intervals")
    if at and form != "repeated":
        problems.append(f"--at: is for --form repeated, not {form}; leave it out")
    elif at and set(at) not in (set(BASE), {*BASE, *RETURNS}):
        way_out = f"give {', '.join(BASE)} to fit R_D and R_N, or these with R_D and R_N to evaluate"
        problems.append(f"--at {','.join(at)}: not a set of parameters; {way_out}")
    elif at and loss == "l2":
        problems.append("--loss l2: R_D and R_N are fitted with huber; leave --loss out")
    problems += [f"--at {name}={value}: is not a positive number" for name, value in at.items() if not value > 0]
    ConfigError.raise_all(problems)


def _record(
    form: str, loss: str, points: Points, solution: Solution, draws: int, seed: int, at: Mapping[str, float]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns (fit.json, rows of predictions.csv)."""
    values, samples = dict(solution.values), dict(solution.samples)
    derived: dict[str, float] = {}
    if {"alpha", "beta"} <= set(values):
        derived = {name: float(value) for name, value in exponents(values).items()}
    intervals = {name: list(interval(sample)) for name, sample in samples.items() if name not in at}
    if derived and samples and not at:
        intervals |= {name: list(interval(sample)) for name, sample in exponents(samples).items()}
    fitted = points.fitted
    ranges = {"n": _range(fitted, "n"), "d": _range(fitted, "d"), "flops": _range(fitted, "compute")}
    rows = _predictions(form, values, samples, points.rows)
    held_out = _held_out(rows, points.rows)
    errors = np.array([row["error_percent"] for row in rows if not row["held_out"]])
    free = 0 if at else len(FORMS[form].free)
    spread = float(np.sqrt((errors**2).sum() / max(len(errors) - free, 1)))
    noise = noise_floor(points.rows)
    fit_noise = max(spread, 100 * noise["relative_std"] if noise else 0.0)
    warnings = [
        *checks.range_warnings(form, points),
        *checks.solution_warnings(form, points, solution, intervals),
        *checks.held_out_warnings(held_out, fit_noise, ranges),
    ]
    flat = solution.profile
    record = {
        **{"format": FORMAT, "form": form, "loss": loss, "evaluated_only": len(at) == len(BASE) + len(RETURNS)},
        **{"convention": points.convention, "schedule": points.schedule},
        **{name: values[name] for name in (*BASE, *RETURNS) if name in values},
        **derived,
        **({"gadre": _gadres_names(values)} if form == "gadre" else {}),
        "intervals": intervals,
        "bootstrap": {
            **{"kind": "bayesian, over runs", "draws": draws if samples else 0, "seed": seed},
            "failed": _failed(samples),
            "samples": {name: [float(f"{x:.{DIGITS}g}") for x in sample] for name, sample in samples.items()},
        },
        "objective": solution.objective,
        "starts": {
            **{"count": len(solution.starts), "agreeing": solution.agreeing},
            "objectives": list(solution.starts),
        },
        "at_bounds": list(solution.at_bounds),
        "condition": solution.condition,
        "profile": {"best": flat.best, "at": dict(zip(RETURNS, flat.at, strict=True)), "R_D": flat.R_D, "R_N": flat.R_N}
        if flat
        else None,
        **{"points": len(fitted), "left_out": dict(points.left_out)},
        "fit_error_percent": float(np.abs(errors).mean()),
        "fit_noise_percent": fit_noise,
        **{"noise": noise, "held_out": held_out, "range": ranges, "warnings": warnings},
        "isoflop": isoflop(fitted),
        "data": {"file": str(points.file), "sha256": sha256_file(points.file)},
        "versions": {"numpy": np.__version__, "scipy": str(scipy_part("version").version), "gpt1_ds": __version__},
    }
    return record, rows


def _predictions(
    form: str, values: Mapping[str, float], samples: Mapping[str, Any], rows: Sequence[Point]
) -> list[dict[str, Any]]:
    """Returns one row of predictions.csv per point: what the law says there, and the middle 95 % of its draws."""
    n, d, u = column(rows, "n"), column(rows, "d"), column(rows, "u")
    predicted = predicted_loss(form, values, n, d, u)[0].tolist()
    low = high = [None] * len(rows)
    if samples:
        low, high = np.quantile(predicted_loss(form, samples, n, d, u), [0.025, 0.975], axis=0).tolist()
    return [
        {
            **{"cell": point.cell, "n": point.n, "d": point.d, "u": point.u, "held_out": int(point.held_out)},
            **{"loss": point.loss, "predicted": predicted[i], "low": low[i], "high": high[i]},
            "error_percent": 100 * (predicted[i] / point.loss - 1),
        }
        for i, point in enumerate(rows)
    ]


def _held_out(rows: Sequence[Mapping[str, Any]], points: Sequence[Point]) -> list[dict[str, Any]]:
    chosen = []
    for row, point in zip(rows, points, strict=True):
        if point.held_out:
            kept = {name: row[name] for name in ("cell", "n", "d", "u", "loss", "predicted", "error_percent")}
            interval_of = None if row["low"] is None else [row["low"], row["high"]]
            chosen.append({**kept, "interval": interval_of, "flops": point.compute})
    return chosen


def _range(points: Sequence[Point], name: str) -> list[float]:
    values = column(points, name)
    return [float(values.min()), float(values.max())]


def _gadres_names(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the loss = a N^b + c 6^(b/2) D^b + E, as its authors write it."""
    b = -values["alpha"]
    return {"a": values["A"], "b": b, "c": values["B"] / 6 ** (b / 2), "E": values["E"]}


def _failed(samples: Mapping[str, Floats]) -> int:
    """Returns the number of draws with a parameter that is no number."""
    return int((~np.isfinite(np.stack(list(samples.values()))).all(0)).sum()) if samples else 0
