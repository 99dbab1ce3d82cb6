"""Figures of single cells and of the fit: how each cell trained, what it scores downstream, what the fit misses of it,
and where the bootstrap puts the fit's parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpt1_ds.report import plots
from gpt1_ds.report.plots import Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_results import Cell, Score, Study
from gpt1_ds.scaling.laws import exponents
from gpt1_ds.scaling.tables import DIVERGED
from gpt1_ds.tracking.record import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 60  # cells named below the residuals; of more, only their order is shown
DRAWS = 1500  # of the bootstrap in the cloud
POINTS = 60_000  # of all training curves together, so that the page stays small
MOST_PANELS = 8


def training_curves(study: Study, sizes: Sizes) -> Drawing:
    """Held-out loss against tokens of every cell that has a run folder, diverged ones in red."""
    curves = {cell: curve for cell in study.cells if (curve := list(_curve(study, cell)))}
    drawn = {cell: curve for cell, curve in curves.items() if len(curve) > 1 or cell.outcome == DIVERGED}
    if not drawn:
        raise NoDataError("no run folder of a cell holds a held-out curve")
    panels: dict[str, list[Cell]] = defaultdict(list)
    for cell in drawn:
        panels[cell.arm].append(cell)
    for arm in list(panels)[MOST_PANELS:]:
        panels["other arms"] += panels.pop(arm)
    figure, places = plots.subplots(len(panels), width=4.0 if len(panels) > 1 else 7.0, height=3.2)
    most = max(POINTS // len(drawn), 10)
    tokens, losses = zip(*(point for curve in drawn.values() for point in curve), strict=True)
    for axes, (arm, cells) in zip(places, panels.items(), strict=True):
        for cell in cells:
            curve = plots.spread(drawn[cell], most)
            colour = "crimson" if cell.outcome == DIVERGED else sizes(cell.n)
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, alpha=0.8)
            if cell.outcome == DIVERGED:
                axes.plot(*curve[-1], zorder=5, **plots.CROSS)
        axes.set(xlim=(min(tokens) / 1.2, max(tokens) * 1.2), ylim=(min(losses) / 1.03, max(losses) * 1.03))
        plots.finish_loss(axes, "tokens trained on so far", arm, named=False)
    sizes.legend(figure, drawn)
    text = "Held-out loss while training, of every cell whose run folder is here, a panel per arm of the study."
    text += " Red, to its last finite value: diverged." if any(cell.outcome == DIVERGED for cell in drawn) else ""
    return Drawing(figure, text, drawn)


def _curve(study: Study, cell: Cell) -> Iterator[tuple[float, float]]:
    """(tokens, held-out loss), the finite ones; the batches' losses of a run that diverged before two evaluations."""
    run = study.run_dir(cell)
    lines = read_records(run.metrics) if run else []
    for kind in ("eval", "train") if cell.outcome == DIVERGED else ("eval",):
        points = [
            (line["tokens"], line["loss"])
            for line in lines
            if line.get("kind") == kind and line.get("tokens") and _finite(line.get("loss"))
        ]
        if len(points) > 1:
            yield from points
            return


def downstream(study: Study, sizes: Sizes) -> Drawing:
    """Score against pre-training compute, a panel per task and metric."""
    panels: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in study.downstream:
        panels[score.task, score.metric].append(score)
    if not panels:
        raise NoDataError("no downstream.csv: no task was evaluated on the cells")
    cells = {cell.cell: cell for cell in study.cells}
    figure, places = plots.subplots(len(panels), width=3.8, height=3.0)
    for axes, ((task, metric), scores) in zip(places, panels.items(), strict=True):
        for score in scores:
            cell = cells.get(score.cell)
            colour, held_out = (sizes(cell.n), cell.held_out) if cell else ("0.5", False)
            plots.point(axes, score.flops, score.value, colour, held_out)
            if score.control is not None:
                axes.plot(score.flops, score.control, "x", color="0.5", markersize=4, label="control")
        for chance in {score.chance for score in scores if score.chance is not None}:
            axes.axhline(chance, color="C3", linewidth=1, label="chance")
        plots.log_axis(axes.xaxis, plots.power)
        plots.finish(axes, plots.FLOPS, metric, task)
    known = [cells[score.cell] for score in study.downstream if score.cell in cells]
    sizes.legend(figure, known)
    text = "Scores on tasks against the compute of pre-training, a panel per task."
    if any(score.control is not None or score.chance is not None for score in study.downstream):
        text += " Grey crosses are controls, a red line is chance, or the most frequent label."
    return Drawing(figure, text, known)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


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
    plots.finish(axes, "" if named else "cells, by training compute", "predicted against measured loss (%)")
    ticks = {place: plots.literal(cell.cell) for place, cell in enumerate(cells) if named}
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=90)
    axes.tick_params("x", labelsize=7)
    sizes.legend(figure, cells)
    return Drawing(figure, text, cells)


def bootstrap(study: Study, sizes: Sizes) -> Drawing:
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
    figure, places = plots.subplots(len(panels), width=4.2, height=3.5)
    for axes, panel in zip(places, panels, strict=True):
        if panel == "cloud":
            _cloud(axes, fit, samples)
        else:
            _histogram(axes, fit, panel, samples[panel])
    fitted = [cell for cell in study.done if not cell.held_out and cell.cell in study.predictions]
    return Drawing(figure, f"{text}.", fitted)


def _cloud(axes: Axes, fit: Mapping[str, Any], samples: dict[str, list[float]]) -> None:
    pairs = plots.spread(list(zip(samples["alpha"], samples["beta"], strict=True)), DRAWS)
    axes.plot(*zip(*pairs, strict=True), ".", color="steelblue", alpha=0.35, markersize=3, markeredgewidth=0)
    intervals = fit.get("intervals") or {}
    if "alpha" in intervals and "beta" in intervals:
        axes.plot(intervals["alpha"], [fit["beta"]] * 2, color="crimson", linewidth=1.4)
        axes.plot([fit["alpha"]] * 2, intervals["beta"], color="crimson", linewidth=1.4)
    axes.plot(fit["alpha"], fit["beta"], "o", color="crimson", markersize=4.5)
    plots.finish(axes, "alpha: exponent of N", "beta: exponent of D")


def _histogram(axes: Axes, fit: Mapping[str, Any], name: str, drawn: list[float]) -> None:
    axes.hist(drawn, bins=40, color="steelblue", alpha=0.6)
    for end in (fit.get("intervals") or {}).get(name, []):
        axes.axvline(end, color="crimson", linewidth=1, linestyle=":")
    if fit.get(name) is not None:
        axes.axvline(fit[name], color="crimson", linewidth=1.4)
    titles = {"E": "E: irreducible loss (nats per token)", "a": "a: N_opt grows as C to this power"}
    plots.finish(axes, titles.get(name, name), "draws")
