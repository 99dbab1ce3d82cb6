"""Figures of loss against size, data and compute: isoFLOP curves, the fit beside its points, the compute frontier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import count
from gpt1_ds.report import plots
from gpt1_ds.report.plots import Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_results import Cell, Study
from gpt1_ds.scaling.isoflop import WIDTH, parabola
from gpt1_ds.scaling.laws import frontier, has_frontier, predicted_loss
from gpt1_ds.scaling.points import FRESH_EPOCHS, KINDS, groups
from gpt1_ds.scaling.predict import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[list[float], list[float]]
CURVES = 8  # isoFLOP curves shown
BESIDE = 1.07  # where a prediction is drawn, in parts of its C, so that both can be seen
LEVELS = 6  # curves of one figure at most, where the cells give no shared values


def once(study: Study) -> list[Cell]:
    """Finished cells that measure L(N, D): at the best learning rate, and of each (N, D) those with most unique
    tokens. Aspect ratios and repetition have figures of their own.
    """
    usable = study.done
    for wanted in (lambda x: x.best_rate, lambda x: x.kind in KINDS, lambda x: x.epochs <= FRESH_EPOCHS):
        usable = list(filter(wanted, usable)) or usable
    unique: dict[tuple[float, float], float] = {}
    for cell in usable:
        unique[cell.n, cell.d] = max(unique.get((cell.n, cell.d), 0.0), cell.u)
    return [cell for cell in usable if cell.u == unique[cell.n, cell.d]]


def chosen(study: Study, cells: list[Cell]) -> str:
    """What `once` left out, for a caption."""
    if len(cells) == len(study.done):
        return ""
    text = " Of several learning rates the best is taken, of several U the largest"
    repeated = any(cell.epochs > FRESH_EPOCHS for cell in study.done)
    return text + (f"; more than {FRESH_EPOCHS:g} epochs are left out." if repeated else ".")


def isoflop(study: Study, sizes: Sizes) -> Drawing:
    """Loss against N at equal compute; a parabola in log N and its lowest point."""
    cells = once(study)
    curves = _measured(cells)
    how = f"of cells whose compute is equal within {WIDTH - 1:.0%}, seeds averaged"
    if not curves:
        curves = _interpolated(cells)
        how = "read off between the budgets of each size, on straight lines in log C and log loss, never beyond them"
    if not curves:
        raise NoDataError("no compute budget has three sizes, not even between the budgets that were trained")
    figure, (axes,) = plots.subplots(1)
    colour = plots.budget_colours(curves)
    edges = 0
    for flops, (n, losses) in curves.items():
        edges += not _draw_parabola(axes, n, losses, colour(flops))
        axes.plot(n, losses, "o", color=colour(flops), ms=4.5, label=f"C = {plots.power(float(f'{flops:.2g}'))}")
    plots.finish_loss(axes, plots.SIZE)
    text = f"Loss against size at equal training compute ({how}). Star: lowest point of the parabola in log N"
    text += f"; {edges} of {len(curves)} curves have none within the sizes trained." if edges else "."
    text += chosen(study, cells) + (
        " Such minima are biased where the sizes are few or off centre; the fit of all cells below is the one to use."
    )
    return Drawing(figure, text, cells)


def _measured(cells: list[Cell]) -> dict[float, Curve]:
    """C -> (N, loss) of at least three sizes; empty where it would be of the smaller part of the cells, by accident."""
    found = groups(cells, lambda cell: cell.flops, WIDTH)
    found = [(flops, some) for flops, some in found if len(plots.alike(some, lambda cell: cell.n)) >= 3]
    if 2 * sum(len(some) for _, some in found) < len(cells):
        return {}
    return {flops: plots.means(some, lambda cell: cell.n) for flops, some in plots.spread(found, CURVES)}


def _draw_parabola(axes: Axes, n: list[float], losses: list[float], colour: Any) -> bool:
    """Whether the curve has its minimum within its points."""
    found = parabola(np.array(n), np.array(losses))
    fine = np.linspace(math.log(n[0]), math.log(n[-1]), 60)
    curve = found.floor + found.curvature * (fine - found.centre) ** 2
    axes.plot(np.exp(fine), curve, color=colour, linewidth=1, alpha=0.7)
    style = {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.7, "zorder": 4}
    if found.inside:
        axes.plot(math.exp(found.centre), found.floor, "*", ms=13, **style)
    return found.inside


def _interpolated(cells: list[Cell]) -> dict[float, Curve]:
    """C -> (N, loss) where at least three sizes were trained on both sides of C."""
    lines = {n: plots.means(some, lambda cell: cell.flops) for n, some in plots.alike(cells, lambda cell: cell.n)}
    lines = {n: line for n, line in lines.items() if len(line[0]) > 1}
    ends = sorted({end for flops, _ in lines.values() for end in flops})
    curves = {}
    for flops in plots.spread(ends, 40):
        over = {n: line for n, line in lines.items() if line[0][0] <= flops <= line[0][-1]}
        if len(over) >= 3:
            at = [math.exp(np.interp(math.log(flops), np.log(x), np.log(y))) for x, y in over.values()]
            curves[flops] = (list(over), at)
    return {flops: curves[flops] for flops in plots.spread(list(curves), 5)}


def fit_and_points(study: Study, sizes: Sizes) -> Drawing:
    """Loss vs D per N and loss vs N per D, with the fitted curves."""
    law, cells = study.law, once(study)
    if law is None:
        raise NoDataError("no fit.json: `gpt1-ds scaling fit STUDY` has not been run")
    figure, (left, right) = plots.subplots(2, width=5.6, height=4.0)
    ns, ds = ([value for value, _ in plots.alike(cells, key)] for key in (lambda x: x.n, lambda x: x.d))
    levels = ds if len(ds) <= LEVELS + 2 else list(np.geomspace(ds[0], ds[-1], LEVELS))
    colour = plots.budget_colours(ds)
    for cell in cells:
        plots.point(left, cell.d, cell.final_loss, sizes(cell.n), cell.held_out)
        plots.point(right, cell.n, cell.final_loss, colour(cell.d), cell.held_out)
    d_ends = np.geomspace(ds[0] / 1.3, ds[-1] * 1.3, 60)
    n_ends = np.geomspace(min(cell.n for cell in cells) / 1.3, max(cell.n for cell in cells) * 1.3, 60)
    for n in ns:
        curve = predicted_loss(law.form, law.values, n, d_ends, d_ends)[0]
        left.plot(d_ends, curve, color=sizes(n), linewidth=1, label=f"N = {count(n)}")
    for d in levels:
        curve = predicted_loss(law.form, law.values, n_ends, d, d)[0]
        right.plot(n_ends, curve, color=colour(d), linewidth=1, label=f"D = {count(d)}")
    plots.finish_loss(left, plots.TOKENS)
    plots.finish_loss(right, plots.SIZE)
    text = "The fitted law (lines) beside the cells (points; open squares: held out, not used by the fit)."
    if levels is not ds:
        text += " Right: curves at evenly spaced D; the points' D lie between them, by colour."
    return Drawing(figure, text + chosen(study, cells), cells)


def compute(study: Study, sizes: Sizes) -> Drawing:
    """Loss vs compute, the frontier of the fit with its interval, and the held-out points with theirs."""
    cells = once(study)
    figure, (axes,) = plots.subplots(1, width=7.6, height=4.6)
    for n, some in plots.alike(cells, lambda cell: cell.n):
        plots.curve(axes, some, lambda cell: cell.flops, sizes(n), marker="", alpha=0.7)
        fitted = [cell for cell in some if not cell.held_out]
        at, losses = [cell.flops for cell in fitted], [cell.final_loss for cell in fitted]
        axes.plot(at, losses, "o", color=sizes(n), ms=4.5, label=f"N = {count(n)}")
    text = "Loss against training compute, a line per size." + chosen(study, cells)
    if not study.flops_given:
        text += " C is 6 N D where results.csv gives none."
    if study.law is not None:
        text += _held_out(axes, study, cells, sizes)
        low, high = axes.dataLim.y0, axes.dataLim.y1
        text += _frontier(axes, study.law, cells)
        axes.set_ylim(low * 0.95, high * 1.03)  # a law that knows nothing may lie orders of magnitude below
    else:
        text += " No frontier and no predictions: the study has no fit yet."
    plots.finish_loss(axes, plots.FLOPS, say=plots.power)
    return Drawing(figure, text, cells)


def _held_out(axes: Axes, study: Study, cells: list[Cell], sizes: Sizes) -> str:
    for cell in (cell for cell in cells if cell.held_out):
        plots.point(axes, cell.flops, cell.final_loss, sizes(cell.n), held_out=True, zorder=5, label="held out")
    flops = {cell.cell: cell.flops for cell in study.cells}
    told = [point for point in study.fit.get("held_out") or [] if point.get("interval") and point["cell"] in flops]
    for point in told:
        (low, high), at = point["interval"], flops[point["cell"]] * BESIDE
        reach = [[max(point["predicted"] - low, 0)], [max(high - point["predicted"], 0)]]
        style: dict[str, Any] = {"fmt": "_", "color": "crimson", "capsize": 4, "zorder": 6, "label": "predicted, 95 %"}
        axes.errorbar(at, point["predicted"], reach, **style)
    if not told:
        return ""
    return " Open squares: held out; red, a little to the right: what the fit predicts there, with its 95 % interval."


def _frontier(axes: Axes, law: Fit, cells: list[Cell]) -> str:
    """The lowest loss per compute that the law allows, and its 95 % band over the bootstrap."""
    if not has_frontier(law.values):
        return " The fitted law has one axis only, so no efficient frontier."
    per_product = math.exp(sum(math.log(cell.flops / (cell.n * cell.d)) for cell in cells) / len(cells))
    flops = np.geomspace(min(cell.flops for cell in cells), max(cell.flops for cell in cells) * 1.5, 80)
    best = frontier(law.values, flops, per_product)[0]
    axes.plot(flops, best, color="black", linestyle="--", linewidth=1.2, label="efficient frontier")
    text = f" Dashed: the lowest loss the fitted law allows, taking C = {per_product:.3g} N D (the cells' mean)"
    if law.samples:
        with np.errstate(invalid="ignore"):  # some draws have none
            low, high = np.nanpercentile(frontier(law.samples, flops, per_product), [2.5, 97.5], axis=0)
        axes.fill_between(flops, low, high, color="black", alpha=0.1, linewidth=0)
        text += "; band: 95 % of the bootstrap"
    return text + "."
