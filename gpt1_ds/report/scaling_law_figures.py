"""Figures of a scaling study about its law: loss against size, data and compute beside the fit (isoFLOP curves, the
compute frontier), what the fit misses of each cell, and how sure its parameters are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import count
from gpt1_ds.report.scaling_axes import (
    FLOPS,
    SIZE,
    TOKENS,
    Drawing,
    NoDataError,
    SizeColours,
    budget_colours,
    evenly,
    finish,
    finish_loss,
    groups_alike,
    law_cells,
    left_out,
    literal,
    mean_losses,
    plot_curve,
    plot_point,
    power,
    subplots,
)
from gpt1_ds.report.scaling_results import Cell, ScalingResults
from gpt1_ds.scaling.isoflop import WIDTH, parabola
from gpt1_ds.scaling.laws import exponents, frontier, has_frontier, predicted_loss
from gpt1_ds.scaling.points import groups
from gpt1_ds.scaling.predict import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Curve = tuple[list[float], list[float]]  # x, y
CURVES = 8  # isoFLOP curves shown
LEVELS = 6  # curves of one figure at most, where the cells give no shared values
BESIDE = 1.07  # where a prediction is drawn, in parts of its C, so that both can be seen
NAMED = 60  # cells named below the residuals; of more, only their order is shown
DRAWS = 1500  # of the bootstrap in the cloud


def isoflop_figure(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against N at equal compute; a parabola in log N and its lowest point."""
    cells = law_cells(study)
    curves = _measured(cells)
    source = f"of cells whose compute is equal within {WIDTH - 1:.0%}, seeds averaged"
    if not curves:
        curves = _interpolated(cells)
        source = "read off between the budgets of each size, on straight lines in log C and log loss, never beyond them"
    if not curves:
        raise NoDataError("no compute budget has three sizes, not even between the budgets that were trained")
    figure, (axes,) = subplots(1)
    colour = budget_colours(curves)
    without_minimum = 0
    for flops, (n, losses) in curves.items():
        without_minimum += not _draw_parabola(axes, n, losses, colour(flops))
        axes.plot(n, losses, "o", color=colour(flops), ms=4.5, label=f"C = {power(float(f'{flops:.2g}'))}")
    finish_loss(axes, SIZE)
    text = f"Loss against size at equal training compute ({source}). Star: lowest point of the parabola in log N"
    text += f"; {without_minimum} of {len(curves)} curves have none within the sizes trained" if without_minimum else ""
    text += f".{left_out(study, cells)}"
    text += (
        " Such minima are biased where the sizes are few or off centre; the fit of all cells below is the one to use."
    )
    return Drawing(figure, text, cells)


def _measured(cells: list[Cell]) -> dict[float, Curve]:
    """C -> (N, loss) of at least three sizes; empty where it would be of the smaller part of the cells, by accident."""
    budgets = []
    for flops, members in groups(cells, lambda cell: cell.flops, WIDTH):
        if len(groups_alike(members, lambda cell: cell.n)) >= 3:
            budgets.append((flops, members))
    if 2 * sum(len(members) for _, members in budgets) < len(cells):
        return {}
    return {flops: mean_losses(members, lambda cell: cell.n) for flops, members in evenly(budgets, CURVES)}


def _draw_parabola(axes: Axes, n: list[float], losses: list[float], colour: Any) -> bool:
    """Draws the parabola of a curve, and its minimum where that lies within the curve's points: whether it does."""
    fitted = parabola(np.array(n), np.array(losses))
    log_n = np.linspace(math.log(n[0]), math.log(n[-1]), 60)
    curve = fitted.floor + fitted.curvature * (log_n - fitted.centre) ** 2
    axes.plot(np.exp(log_n), curve, color=colour, linewidth=1, alpha=0.7)
    style = {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.7, "zorder": 4}
    if fitted.inside:
        axes.plot(math.exp(fitted.centre), fitted.floor, "*", ms=13, **style)
    return fitted.inside


def _interpolated(cells: list[Cell]) -> dict[float, Curve]:
    """C -> (N, loss) where at least three sizes were trained on both sides of C."""
    trained: dict[float, Curve] = {}  # N -> (C, loss), ascending
    for n, members in groups_alike(cells, lambda cell: cell.n):
        budgets, losses = mean_losses(members, lambda cell: cell.flops)
        if len(budgets) > 1:
            trained[n] = budgets, losses
    curves: dict[float, Curve] = {}
    for flops in evenly(sorted({budget for budgets, _ in trained.values() for budget in budgets}), 40):
        sizes, between = [], []
        for n, (budgets, losses) in trained.items():
            if budgets[0] <= flops <= budgets[-1]:
                sizes.append(n)
                between.append(math.exp(np.interp(math.log(flops), np.log(budgets), np.log(losses))))
        if len(sizes) >= 3:
            curves[flops] = sizes, between
    return {flops: curves[flops] for flops in evenly(list(curves), 5)}


def fit_and_points(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss vs D per N and loss vs N per D, with the fitted curves."""
    law, cells = study.law, law_cells(study)
    if law is None:
        raise NoDataError("no fit.json: `gpt1-ds scaling fit STUDY` has not been run")
    figure, (left, right) = subplots(2, width=5.6, height=4.0)
    ns, ds = ([value for value, _ in groups_alike(cells, key)] for key in (lambda x: x.n, lambda x: x.d))
    levels = ds if len(ds) <= LEVELS + 2 else list(np.geomspace(ds[0], ds[-1], LEVELS))
    colour = budget_colours(ds)
    for cell in cells:
        plot_point(left, cell.d, cell.final_loss, sizes(cell.n), cell.held_out)
        plot_point(right, cell.n, cell.final_loss, colour(cell.d), cell.held_out)
    d_ends = np.geomspace(ds[0] / 1.3, ds[-1] * 1.3, 60)
    n_ends = np.geomspace(min(cell.n for cell in cells) / 1.3, max(cell.n for cell in cells) * 1.3, 60)
    for n in ns:
        curve = predicted_loss(law.form, law.values, n, d_ends, d_ends)[0]
        left.plot(d_ends, curve, color=sizes(n), linewidth=1, label=f"N = {count(n)}")
    for d in levels:
        curve = predicted_loss(law.form, law.values, n_ends, d, d)[0]
        right.plot(n_ends, curve, color=colour(d), linewidth=1, label=f"D = {count(d)}")
    finish_loss(left, TOKENS)
    finish_loss(right, SIZE)
    text = "The fitted law (lines) beside the cells (points; open squares: held out, not used by the fit)."
    if levels is not ds:
        text += " Right: curves at evenly spaced D; the points' D lie between them, by colour."
    return Drawing(figure, text + left_out(study, cells), cells)


def compute(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss vs compute, the frontier of the fit with its interval, and the held-out points with theirs."""
    cells = law_cells(study)
    figure, (axes,) = subplots(1, width=7.6, height=4.6)
    for n, members in groups_alike(cells, lambda cell: cell.n):
        plot_curve(axes, members, lambda cell: cell.flops, sizes(n), marker="", alpha=0.7)
        fitted = [cell for cell in members if not cell.held_out]
        flops, losses = [cell.flops for cell in fitted], [cell.final_loss for cell in fitted]
        axes.plot(flops, losses, "o", color=sizes(n), ms=4.5, label=f"N = {count(n)}")
    text = "Loss against training compute, a line per size." + left_out(study, cells)
    if not study.flops_given:
        text += " C is 6 N D where results.csv gives none."
    if study.law is not None:
        text += _held_out(axes, study, cells, sizes)
        low, high = axes.dataLim.y0, axes.dataLim.y1
        text += _frontier(axes, study.law, cells)
        axes.set_ylim(low * 0.95, high * 1.03)  # a law that knows nothing may lie orders of magnitude below
    else:
        text += " No frontier and no predictions: the study has no fit yet."
    finish_loss(axes, FLOPS, say=power)
    return Drawing(figure, text, cells)


def _held_out(axes: Axes, study: ScalingResults, cells: list[Cell], sizes: SizeColours) -> str:
    """Held-out cells, and beside them what the law says there with its interval; the caption's sentence."""
    for cell in (cell for cell in cells if cell.held_out):
        plot_point(axes, cell.flops, cell.final_loss, sizes(cell.n), held_out=True, zorder=5, label="held out")
    flops = {cell.cell: cell.flops for cell in study.cells}
    held_out = study.fit.get("held_out") or []
    predictions = [point for point in held_out if point.get("interval") and point["cell"] in flops]
    style: dict[str, Any] = {"fmt": "_", "color": "crimson", "capsize": 4, "zorder": 6, "label": "predicted, 95 %"}
    for point in predictions:
        predicted, (low, high) = point["predicted"], point["interval"]
        reach = [[max(predicted - low, 0)], [max(high - predicted, 0)]]
        axes.errorbar(flops[point["cell"]] * BESIDE, predicted, reach, **style)
    if not predictions:
        return ""
    return " Open squares: held out; red, a little to the right: what the law says there, with its 95 % interval."


def _frontier(axes: Axes, law: Fit, cells: list[Cell]) -> str:
    """The lowest loss per compute that the law allows, and its 95 % band over the bootstrap; the caption's sentence."""
    if not has_frontier(law.values):
        return " The fitted law has one axis only, so no efficient frontier."
    k = math.exp(sum(math.log(cell.flops / (cell.n * cell.d)) for cell in cells) / len(cells))  # of C = k N D
    flops = np.geomspace(min(cell.flops for cell in cells), max(cell.flops for cell in cells) * 1.5, 80)
    best = frontier(law.values, flops, k)[0]
    axes.plot(flops, best, color="black", linestyle="--", linewidth=1.2, label="efficient frontier")
    text = f" Dashed: the lowest loss the fitted law allows, taking C = {k:.3g} N D (the cells' mean)"
    if law.samples:
        with np.errstate(invalid="ignore"):  # some draws have none
            low, high = np.nanpercentile(frontier(law.samples, flops, k), [2.5, 97.5], axis=0)
        axes.fill_between(flops, low, high, color="black", alpha=0.1, linewidth=0)
        text += "; band: 95 % of the bootstrap"
    return text + "."


def residuals(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """(predicted - loss) / loss per cell in percent, by compute, with the band of what seeds differ by."""
    cells = sorted((cell for cell in study.done if cell.cell in study.predictions), key=lambda cell: cell.flops)
    if not cells:
        raise NoDataError("no predictions.csv: `gpt1-ds scaling fit STUDY` has not been run")
    named = len(cells) <= NAMED
    longest = max(len(cell.cell) for cell in cells) if named else 0  # its name stands below the axes
    figure, (axes,) = subplots(1, max(7.2, 0.19 * len(cells)) if named else 8.0, max(4.0, 2 + 0.07 * longest))
    for place, cell in enumerate(cells):
        error = study.error_percent(cell) or 0.0
        axes.plot([place, place], [0, error], color=sizes(cell.n), linewidth=1)
        plot_point(axes, place, error, sizes(cell.n), cell.held_out)
    text = (
        "What the fit predicts against what was measured, per cell in order of compute: (predicted - loss) / loss. "
        "Open squares: held out. "
    )
    noise = study.fit.get("noise")
    if noise:
        band = 200 * noise["relative_std"]
        axes.axhspan(-band, band, color="0.5", alpha=0.15, linewidth=0, zorder=0)
        text += (
            f"Band: twice the standard deviation between seeds ({noise['relative_std']:.2%}, of {noise['runs']} runs "
            f"in {noise['groups']} groups)."
        )
    else:
        text += "No band: no cell was run with several seeds, so nothing says what chance alone does."
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.margins(x=0.02)
    finish(axes, "" if named else "cells, by training compute", "predicted against measured loss (%)")
    ticks = {place: literal(cell.cell) for place, cell in enumerate(cells) if named}
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=90, fontsize=7)
    sizes.legend(figure, cells)
    return Drawing(figure, text, cells)


def bootstrap(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """The cloud of alpha and beta, and histograms of E and of a, which says how N_opt grows with compute."""
    fit = study.fit
    if not fit:
        raise NoDataError("no fit.json: `gpt1-ds scaling fit STUDY` has not been run")
    draws = fit.get("bootstrap") or {}
    samples = {name: drawn for name, drawn in (draws.get("samples") or {}).items() if drawn}
    if len(samples.get("alpha", [])) == len(samples.get("beta", [])) > 0:
        samples["a"] = exponents(samples)["a"].tolist()
    panels = [name for name in ("alpha", "beta", "E", "a") if len(set(samples.get(name, []))) > 1]
    if not panels:
        raise NoDataError("fit.json holds no bootstrap draws")
    number = draws.get("draws", len(samples[panels[0]]))
    failed = f", {draws['failed']} of which could not be fitted" if draws.get("failed") else ""
    text = (
        f"Where the parameters fall in {number:,} bootstrap resamples of the runs{failed}. Red: the fit and its 95 % "
        "interval. a is the exponent of N_opt in compute; E the loss that neither size nor data removes"
    )
    if panels[:2] == ["alpha", "beta"] and samples["alpha"] != samples["beta"]:
        panels[:2] = ["cloud"]
        text += f"; of the cloud, {DRAWS:,} draws are shown" if len(samples["alpha"]) > DRAWS else ""
    figure, places = subplots(len(panels), width=4.2, height=3.5)
    for axes, panel in zip(places, panels, strict=True):
        if panel == "cloud":
            _cloud(axes, fit, samples)
        else:
            _histogram(axes, fit, panel, samples[panel])
    fitted = [cell for cell in study.done if not cell.held_out and cell.cell in study.predictions]
    return Drawing(figure, f"{text}.", fitted)


def _cloud(axes: Axes, fit: Mapping[str, Any], samples: dict[str, list[float]]) -> None:
    pairs = evenly(list(zip(samples["alpha"], samples["beta"], strict=True)), DRAWS)
    axes.plot(*zip(*pairs, strict=True), ".", color="steelblue", alpha=0.35, markersize=3, markeredgewidth=0)
    intervals = fit.get("intervals") or {}
    if "alpha" in intervals and "beta" in intervals:
        axes.plot(intervals["alpha"], [fit["beta"]] * 2, color="crimson", linewidth=1.4)
        axes.plot([fit["alpha"]] * 2, intervals["beta"], color="crimson", linewidth=1.4)
    axes.plot(fit["alpha"], fit["beta"], "o", color="crimson", markersize=4.5)
    finish(axes, "alpha: exponent of N", "beta: exponent of D")


def _histogram(axes: Axes, fit: Mapping[str, Any], name: str, drawn: list[float]) -> None:
    axes.hist(drawn, bins=40, color="steelblue", alpha=0.6)
    for end in (fit.get("intervals") or {}).get(name, []):
        axes.axvline(end, color="crimson", linewidth=1, linestyle=":")
    if fit.get(name) is not None:
        axes.axvline(fit[name], color="crimson", linewidth=1.4)
    titles = {"E": "E: irreducible loss (nats per token)", "a": "a: N_opt grows as C to this power"}
    finish(axes, titles.get(name, name), "draws")
