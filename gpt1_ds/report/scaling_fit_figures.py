"""Figures of how far the fit can be trusted: what it misses per cell, and where the bootstrap puts its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt1_ds.report import plots
from gpt1_ds.report.plots import Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_results import Study
from gpt1_ds.scaling.laws import exponents

NAMED = 60  # cells named below the residuals; of more, only their order is shown
DRAWS = 1500  # of the bootstrap in the cloud


def residuals(study: Study, sizes: Sizes) -> Drawing:
    """(predicted - loss) / loss per cell in percent, by compute, with the band of what seeds differ by."""
    cells = sorted((cell for cell in study.done if cell.cell in study.predictions), key=lambda cell: cell.flops)
    if not cells:
        raise NoDataError("no predictions.csv: `gpt1-ds scaling fit STUDY` has not been run")
    named = len(cells) <= NAMED
    figure, (axes,) = plots.subplots(1, width=max(7.2, 0.19 * len(cells)) if named else 8.0, height=4.0)
    for place, cell in enumerate(cells):
        error = study.error_percent(cell) or 0.0
        axes.plot([place, place], [0, error], color=sizes(cell.n), linewidth=1)
        plots.point(axes, place, error, sizes(cell.n), cell.held_out)
    text = (
        "What the fit predicts against what was measured, per cell in order of compute: (predicted - loss) / loss. "
        "Open squares: held out. "
    )
    noise = (study.fit or {}).get("noise")
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
    plots.finish(axes, "" if named else "cells, by training compute", "predicted against measured loss (%)")
    ticks = {place: plots.literal(cell.cell) for place, cell in enumerate(cells) if named}
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=90)
    axes.tick_params("x", labelsize=7)
    sizes.legend(figure, cells)
    return Drawing(figure, text, cells)


def bootstrap(study: Study, sizes: Sizes) -> Drawing:
    """The cloud of alpha and beta, and histograms of E and of a, which says how N_opt grows with compute."""
    fit = study.fit
    if fit is None:
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
    figure, places = plots.subplots(len(panels), width=4.2, height=3.5)
    for axes, panel in zip(places, panels, strict=True):
        if panel == "cloud":
            _cloud(axes, fit, samples)
        else:
            _histogram(axes, fit, panel, samples[panel])
    fitted = [cell for cell in study.done if not cell.held_out and cell.cell in study.predictions]
    return Drawing(figure, f"{text}.", fitted)


def _cloud(axes: Any, fit: Mapping[str, Any], samples: dict[str, list[float]]) -> None:
    pairs = plots.spread(list(zip(samples["alpha"], samples["beta"], strict=True)), DRAWS)
    axes.plot(*zip(*pairs, strict=True), ".", color="steelblue", alpha=0.35, markersize=3, markeredgewidth=0)
    intervals = fit.get("intervals") or {}
    if "alpha" in intervals and "beta" in intervals:
        axes.plot(intervals["alpha"], [fit["beta"]] * 2, color="crimson", linewidth=1.4)
        axes.plot([fit["alpha"]] * 2, intervals["beta"], color="crimson", linewidth=1.4)
    axes.plot(fit["alpha"], fit["beta"], "o", color="crimson", markersize=4.5)
    plots.finish(axes, "alpha: exponent of N", "beta: exponent of D")


def _histogram(axes: Any, fit: Mapping[str, Any], name: str, drawn: list[float]) -> None:
    axes.hist(drawn, bins=40, color="steelblue", alpha=0.6)
    for end in (fit.get("intervals") or {}).get(name, []):
        axes.axvline(end, color="crimson", linewidth=1, linestyle=":")
    if fit.get(name) is not None:
        axes.axvline(fit[name], color="crimson", linewidth=1.4)
    titles = {"E": "E: irreducible loss (nats per token)", "a": "a: N_opt grows as C to this power"}
    plots.finish(axes, titles.get(name, name), "draws")
