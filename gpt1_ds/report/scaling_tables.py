"""The tables of a scaling study's page: what was run, what the fit says and how far it is off, every cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpt1_ds.common.text import count, duration
from gpt1_ds.report.scaling_axes import power
from gpt1_ds.report.scaling_results import Cell, ScalingResults
from gpt1_ds.scaling.checks import NOISES
from gpt1_ds.scaling.tables import DONE

Rows = list[tuple[str, str]]
ABOUT_E = ("implausible E", "E moves", "at a bound: E;")  # warnings that a bound of E says in plainer words
MEANINGS = {
    "alpha": "exponent of N",
    "beta": "exponent of D",
    "E": "irreducible loss, nats per token",
    "a": "N_opt grows as C to this power",
    "b": "D_opt grows as C to this power",
    "R_D": "extra epochs after which repeating brings little",
    "R_N": "the same of parameters beyond what the data can fill",
    "A": "of the N term; hardly identified, not to be quoted",
    "B": "of the D term; hardly identified, not to be quoted",
}


def overview(study: ScalingResults) -> Rows:
    """Returns (what, value) rows about what was run."""
    done = study.done
    own = sum(cell.flops * (1.0 if cell.own_share is None else cell.own_share) for cell in done)
    shared = "; a branch without its trunk's FLOPs" if any(cell.own_share not in (None, 1.0) for cell in done) else ""
    rows = [
        ("cells", f"{len(study.cells)}: " + ", ".join(f"{number} {name}" for name, number in study.outcomes.items())),
        ("parameters N", f"{_range([cell.n for cell in done])}; {study.convention}"),
        ("training tokens D", _range([cell.d for cell in done])),
        ("schedule", study.schedule),
        ("compute", f"{power(float(f'{own:.3g}'))} FLOPs in the cells that are done{shared}"),
    ]
    seconds = [cell.seconds for cell in study.cells if cell.seconds]
    if seconds:
        rows.append(("training time", f"{duration(sum(seconds))}, of all cells together"))
    spent = [cell.rank_hours for cell in study.cells if cell.rank_hours]
    if spent:
        rows.append(("cost", f"{sum(spent):.4g} hours of ranks"))
    return rows


def parameters(study: ScalingResults) -> list[tuple[str, str, str, str]]:
    """Returns (name, value, 95 % interval, meaning) of the fit, E and the exponents first."""
    fit = study.fit
    intervals = {name: _interval(ends) for name, ends in (fit.get("intervals") or {}).items()}
    if (bound := irreducible_bound(study)) is not None:
        intervals["E"] = f"below {bound:.3g}"
    return [
        (name, f"{fit[name]:.4g}", intervals.get(name, "-"), meaning)
        for name, meaning in MEANINGS.items()
        if isinstance(fit.get(name), int | float)
    ]


def quality(study: ScalingResults) -> Rows:
    """Returns (what, value) rows about how the fit was found."""
    fit = study.fit
    starts = fit.get("starts") or {}
    rows = [
        ("form", f"{fit.get('form', '?')}, {fit.get('loss', '?')} loss, {fit.get('points', '?')} points"),
        ("objective", f"{fit['objective']:.6g}" if fit.get("objective") is not None else "not recorded"),
        ("starts that agree", f"{starts.get('agreeing', '?')} of {starts.get('count', '?')}"),
        ("at a bound", ", ".join(fit.get("at_bounds") or []) or "none"),
    ]
    if fit.get("fit_error_percent") is not None:
        rows.append(("mean error of the fitted points", f"{fit['fit_error_percent']:.2f} %"))
    for why, number in (fit.get("left_out") or {}).items():
        rows.append((f"cells not fitted: {why}", str(number)))
    return [*rows, ("noise between seeds", noise(study))]


def noise(study: ScalingResults) -> str:
    """Returns the noise floor, below which no error means anything."""
    between_seeds = study.fit.get("noise")
    if not between_seeds:
        return "not known: no cell was run with several seeds"
    deviation, runs, groups = (between_seeds[key] for key in ("relative_std", "runs", "groups"))
    return f"{100 * deviation:.2f} % (standard deviation; {runs} runs in {groups} groups)"


def held_out(study: ScalingResults) -> list[list[str]]:
    """Returns cell, N, D, measured, predicted, interval, error, error in units of the noise, whether inside the
    interval of the law, widened by the noise between seeds, or by the fit's where no cell has several seeds.
    """
    fit = study.fit
    seed_noise = 100 * (fit.get("noise") or {}).get("relative_std", 0)
    spread = NOISES * (seed_noise or fit.get("fit_noise_percent") or 0.0) / 100
    rows = []
    for point in fit.get("held_out") or []:
        interval, error = point.get("interval"), point["error_percent"]
        loss, predicted = point.get("loss"), point["predicted"]
        inside = ""
        if interval and loss is not None:
            of_law = max(0.0, interval[1] - predicted if loss > predicted else predicted - interval[0])
            inside = "yes" if abs(loss - predicted) <= math.hypot(of_law, spread * predicted) else "no"
        rows.append(
            [
                *(str(point["cell"]), count(point["n"]), count(point["d"]), _loss(loss), _loss(predicted)),
                *(_interval(interval), f"{error:+.2f} %"),
                *(f"{abs(error) / seed_noise:.1f} x" if seed_noise else "-", inside),
            ]
        )
    return rows


def warnings(study: ScalingResults) -> list[str]:
    """Returns what a reader must know before a number of the fit."""
    found = [str(warning) for warning in study.fit.get("warnings") or []]
    if irreducible_bound(study) is not None:
        found = [warning for warning in found if not warning.startswith(ABOUT_E)]
    if study.stale:
        found.insert(0, "The fit is of another results.csv than this page's: `gpt1-ds scaling fit STUDY` again.")
    return found


def irreducible_bound(study: ScalingResults) -> float | None:
    """Returns what E is below with 95 % confidence, one-sided, in nats per token, where the runs do not fix it: its
    interval is wider than half of it. None where they do, or where there are no draws.
    """
    fit = study.fit
    low, high = (fit.get("intervals") or {}).get("E") or (0.0, 0.0)
    drawn = ((fit.get("bootstrap") or {}).get("samples") or {}).get("E") or []
    if not drawn or high - low <= fit["E"] / 2:
        return None
    return float(np.quantile(drawn, 0.95))


def limits(study: ScalingResults) -> list[str]:
    """Returns what no number of the fit says, in plain words."""
    found = []
    if (bound := irreducible_bound(study)) is not None:
        found.append(
            f"E, the loss that neither size nor data removes, is below {bound:.3g} nats per token (95 %, one-sided); "
            "nothing more is known of it. Predictions between the runs do not depend on it; those far beyond them "
            "do: do not extrapolate."
        )
    return found


COLUMNS: Mapping[str, Callable[[ScalingResults, Cell], str]] = {
    "cell": lambda study, cell: cell.cell,
    "outcome": lambda study, cell: cell.outcome,
    "arm": lambda study, cell: cell.arm,
    "kind": lambda study, cell: cell.kind,
    "layers x width": lambda study, cell: f"{cell.layers} x {cell.width}" if cell.layers else "",
    "seed": lambda study, cell: "" if cell.seed is None else str(cell.seed),
    "learning rate": lambda study, cell: f"{cell.learning_rate:.3g}" if cell.learning_rate else "",
    "schedule": lambda study, cell: cell.schedule,
    "N": lambda study, cell: count(cell.n),
    "N (all)": lambda study, cell: count(cell.n_all) if cell.n_all else "",
    "D": lambda study, cell: count(cell.d),
    "U": lambda study, cell: count(cell.u),
    "epochs": lambda study, cell: f"{cell.epochs:.3g}",
    "C": lambda study, cell: power(float(f"{cell.flops:.3g}")),
    "loss": lambda study, cell: _loss(cell.loss),
    "bits/byte": lambda study, cell: _loss(cell.bits_per_byte),
    "predicted": lambda study, cell: _loss(study.predictions.get(cell.cell)),
    "error": lambda study, cell: _percent(study.error_percent(cell)),
    "held out": lambda study, cell: "yes" if cell.held_out else "",
    "time": lambda study, cell: duration(cell.seconds) if cell.seconds else "",
    "rank hours": lambda study, cell: f"{cell.rank_hours:.3g}" if cell.rank_hours else "",
}


def cells(study: ScalingResults) -> tuple[list[str], list[list[str]]]:
    """Returns the head and a row per cell; columns in which every cell is empty are left out."""
    rows = [[say(study, cell) for say in COLUMNS.values()] for cell in study.cells]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    head = list(COLUMNS)
    return [head[place] for place in kept], [[row[place] for place in kept] for row in rows]


def unfinished(study: ScalingResults) -> list[tuple[str, str, str]]:
    """Returns (outcome, cell, why) of every cell without a final loss, by outcome."""
    order = list(study.outcomes)
    left = sorted((cell for cell in study.cells if not cell.done), key=lambda cell: order.index(cell.outcome))
    return [("no loss" if cell.outcome == DONE else cell.outcome, cell.cell, cell.reason) for cell in left]


def _range(values: list[float]) -> str:
    low, high = count(min(values)), count(max(values))
    return low if low == high else f"{low} to {high}"


def _loss(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def _percent(value: Any) -> str:
    return f"{value:+.2f} %" if isinstance(value, int | float) else ""


def _interval(ends: Any) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}" if ends and None not in ends else "-"
