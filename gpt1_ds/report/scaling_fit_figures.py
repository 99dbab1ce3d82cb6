"""Figures of how far the fit can be trusted: what it misses per cell, and where the bootstrap puts its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt1_ds.report.scaling_axes import Drawing, Nothing, Sizes, finish, literal, spread, subplots
from gpt1_ds.report.scaling_study import Study
from gpt1_ds.scaling.laws import exponents

NAMED = 60  # cells named below the residuals; of more, only their order is shown
DRAWS = 1500  # of the bootstrap in the cloud


def residuals(study: Study, sizes: Sizes) -> Drawing:
    """(predicted - loss) / loss per cell in percent, by compute, with the band of what seeds differ by."""
    cells = sorted((cell for cell in study.done if cell.cell in study.predictions), key=lambda cell: cell.flops)
    if not cells:
        raise Nothing("no predictions.csv: `gpt1-ds scaling fit STUDY` has not been run")
    named = len(cells) <= NAMED
    figure, (axes,) = subplots(1, width=max(7.2, 0.19 * len(cells)) if named else 8.0, height=4.0)
    places = range(len(cells))
    errors = [study.error_percent(cell) or 0.0 for cell in cells]
    for place, cell, error in zip(places, cells, errors, strict=True):
        axes.plot([place, place], [0, error], color=sizes(cell.n), linewidth=1)
        face = "white" if cell.held_out else sizes(cell.n)
        shape = "s" if cell.held_out else "o"
        axes.plot(place, error, shape, color=sizes(cell.n), markerfacecolor=face, markersize=5)
    noise = (study.fit or {}).get("noise")
    if noise:
        band = 200 * noise["relative_std"]
        axes.axhspan(-band, band, color="0.5", alpha=0.15, linewidth=0, zorder=0)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.margins(x=0.02)
    finish(axes, "" if named else "cells, by training compute", "predicted against measured loss (%)")
    axes.set_xticks(list(places) if named else [], [literal(cell.cell) for cell in cells] if named else [], rotation=90)
    axes.tick_params("x", labelsize=7)
    sizes.legend(figure, cells)
    text = (
        "What the fit predicts against what was measured, per cell in order of compute: (predicted - loss) / loss. "
        "Open squares: held out. "
    )
    text += (
        f"Band: twice the standard deviation between seeds ({noise['relative_std']:.2%}, of {noise['runs']} runs in "
        f"{noise['groups']} groups)."
        if noise
        else "No band: no cell was run with several seeds, so nothing says what chance alone does."
    )
    return Drawing.of(figure, text, cells)


def bootstrap(study: Study, sizes: Sizes) -> Drawing:
    """The cloud of alpha and beta, and histograms of E and of a, which says how N_opt grows with compute."""
    fit = study.fit
    if fit is None:
        raise Nothing("no fit.json: `gpt1-ds scaling fit STUDY` has not been run")
    samples = {name: drawn for name, drawn in ((fit.get("bootstrap") or {}).get("samples") or {}).items() if drawn}
    if len(samples.get("alpha", [])) == len(samples.get("beta", [])) > 0:
        samples["a"] = exponents(samples)["a"].tolist()
    clouds = [name for name in ("alpha", "beta", "E", "a") if len(set(samples.get(name, []))) > 1]
    if not clouds:
        raise Nothing("fit.json holds no bootstrap draws")
    both = {"alpha", "beta"} <= set(clouds) and samples["alpha"] != samples["beta"]
    panels = ["cloud", *(name for name in clouds if name not in ("alpha", "beta"))] if both else clouds
    figure, places = subplots(len(panels), width=4.2, height=3.5)
    for axes, panel in zip(places, panels, strict=True):
        if panel == "cloud":
            _cloud(axes, fit, samples)
        else:
            _histogram(axes, fit, panel, samples[panel])
    draws = fit["bootstrap"]
    text = (
        f"Where the parameters fall in {draws.get('draws', len(samples[clouds[0]])):,} bootstrap resamples of the runs"
        f"{f', {failed} of which could not be fitted' if (failed := draws.get('failed')) else ''}. Red: the fit and "
        "its 95 % interval. a is the exponent of N_opt in compute; E the loss that neither size nor data removes"
    )
    text += f"; of the cloud, {DRAWS:,} draws are shown." if both and len(samples["alpha"]) > DRAWS else "."
    fitted = [cell for cell in study.done if not cell.held_out and (cell.cell in study.predictions)]
    return Drawing.of(figure, text, fitted)


def _cloud(axes: Any, fit: Mapping[str, Any], samples: dict[str, list[float]]) -> None:
    pairs = spread(list(zip(samples["alpha"], samples["beta"], strict=True)), DRAWS)
    axes.plot(*zip(*pairs, strict=True), ".", color="steelblue", alpha=0.35, markersize=3, markeredgewidth=0)
    intervals = fit.get("intervals") or {}
    if "alpha" in intervals and "beta" in intervals:
        axes.plot(intervals["alpha"], [fit["beta"]] * 2, color="crimson", linewidth=1.4)
        axes.plot([fit["alpha"]] * 2, intervals["beta"], color="crimson", linewidth=1.4)
    axes.plot(fit["alpha"], fit["beta"], "o", color="crimson", markersize=4.5)
    finish(axes, "alpha: exponent of N", "beta: exponent of D")


def _histogram(axes: Any, fit: Mapping[str, Any], name: str, drawn: list[float]) -> None:
    axes.hist(drawn, bins=40, color="steelblue", alpha=0.6)
    for end in (fit.get("intervals") or {}).get(name, []):
        axes.axvline(end, color="crimson", linewidth=1, linestyle=":")
    if fit.get(name) is not None:
        axes.axvline(fit[name], color="crimson", linewidth=1.4)
    words = {"E": "E: irreducible loss (nats per token)", "a": "a: N_opt grows as C to this power"}
    finish(axes, words.get(name, name), "draws")
