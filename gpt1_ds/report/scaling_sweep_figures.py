"""Figures of one thing varied: depth, epochs over the same text, the learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import count
from gpt1_ds.report import plots
from gpt1_ds.report.plots import LINES, Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_loss_figures import once
from gpt1_ds.report.scaling_results import Cell, Study
from gpt1_ds.scaling.isoflop import WIDTH
from gpt1_ds.scaling.laws import predicted_loss
from gpt1_ds.scaling.points import KINDS, groups
from gpt1_ds.scaling.tables import DIVERGED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAME_SIZE = 1.15  # largest ratio of sizes that are on one iso-N curve


def depth(study: Study, sizes: Sizes) -> Drawing:
    """Loss against layers: a ladder at equal data or compute, and iso-N curves where the width is free."""
    ladder = [cell for cell in once(study) if cell.layers and cell.kind in KINDS]
    shaped = [cell for cell in study.done if cell.best_rate and cell.layers and cell.kind not in KINDS]
    panels = [cells for cells in (ladder, shaped) if len({cell.layers for cell in cells}) > 1]
    if not panels:
        raise NoDataError("no two finished cells differ in depth, or results.csv does not say how deep they are")
    figure, places = plots.subplots(len(panels), width=5.6, height=4.0)
    text = "Loss against depth."
    for axes, cells in zip(places, panels, strict=True):
        text += _iso_n(axes, cells, sizes) if cells is shaped else _ladder(axes, cells)
        plots.log_axis(axes.yaxis, plots.plain)
        axes.set_xticks(sorted({int(cell.layers or 0) for cell in cells}))
        plots.legend(axes)
    return Drawing(figure, text, [cell for cells in panels for cell in cells])


def _layers(cell: Cell) -> float:
    return float(cell.layers or 0)


def _ladder(axes: Axes, cells: list[Cell]) -> str:
    by_data = plots.alike(cells, lambda cell: cell.d)
    shared = any(len({cell.layers for cell in some}) > 2 for _, some in by_data)
    lines = by_data if shared else groups(cells, lambda cell: cell.flops, WIDTH)
    colour = plots.budget_colours(value for value, _ in lines)
    for value, some in lines:
        label = f"D = {count(value)}" if shared else f"C = {plots.power(float(f'{value:.2g}'))}"
        plots.curve(axes, some, _layers, colour(value), label=label)
    plots.finish(axes, "layers (width grows with them)", plots.LOSS, "ladder")
    return f" Ladder: a line per {'token' if shared else 'compute'} budget, the width growing with depth."


def _iso_n(axes: Axes, cells: list[Cell], sizes: Sizes) -> str:
    """Cells of one token budget and about one size joined; those of one width dashed."""
    budgets = [d for d, _ in plots.alike(cells, lambda cell: cell.d)]
    for number, d in enumerate(budgets):
        here = [cell for cell in cells if math.isclose(cell.d, d, rel_tol=0.05)]
        more = f", D = {count(d)}" if len(budgets) > 1 else ""
        for n, some in groups(here, lambda cell: cell.n, SAME_SIZE):
            if len({cell.width for cell in some}) > 1:
                style = {"linestyle": LINES[number % 4], "linewidth": 1.2, "label": f"N ≈ {count(n)}{more}"}
                plots.curve(axes, some, _layers, sizes(n), **style)
        fixed = [cell for cell in here if cell.kind == "depth"]
        for width in sorted({cell.width or 0 for cell in fixed}):
            some = [cell for cell in fixed if (cell.width or 0) == width]
            style = {"linestyle": ":", "linewidth": 1.2, "marker": "", "label": f"width {width or '?'}{more}"}
            plots.curve(axes, some, _layers, "0.5", **style)
            for cell in some:
                plots.point(axes, _layers(cell), cell.final_loss, sizes(cell.n), held_out=False)
    plots.finish(axes, "layers", plots.LOSS, "depth and shape")
    return (
        f" Depth and shape: iso-N curves join cells of about the same size (within {SAME_SIZE - 1:.0%}) and data, the "
        "width shrinking as depth grows; dotted: the width stays, N grows with depth."
    )


def repetition(study: Study, sizes: Sizes) -> Drawing:
    """Loss above that with the most unique tokens, at equal N and D, against epochs."""
    families = _families((x for x in study.done if x.best_rate), lambda x: (x.n, x.d), lambda x: x.u)
    if not families:
        raise NoDataError("no size was trained on the same number of tokens with different numbers of unique ones")
    figure, (axes,) = plots.subplots(1, width=6.8)
    for number, ((n, d), cells) in enumerate(sorted(families.items())):
        fresh = max(cell.u for cell in cells)
        base = [cell.final_loss for cell in cells if cell.u == fresh]
        floor = sum(base) / len(base)
        epochs, losses = plots.means(cells, lambda cell: cell.epochs)
        excess = [100 * (loss / floor - 1) for loss in losses]
        label = f"N = {count(n)}, D = {count(d)}"
        axes.plot(epochs, excess, color=sizes(n), linestyle=LINES[number % 4], linewidth=1.2, label=label)
        for cell in cells:
            plots.point(axes, cell.epochs, 100 * (cell.final_loss / floor - 1), sizes(n), held_out=False)
        if study.law and study.law.form == "repeated":
            fine = np.geomspace(epochs[0], epochs[-1], 41)
            told = predicted_loss("repeated", study.law.values, n, d, np.append(d / fine, fresh))[0]
            curve = 100 * (told[:-1] / told[-1] - 1)
            axes.plot(fine, curve, color="0.4", linewidth=0.9, label="fit")
    axes.axhline(0, color="0.6", linewidth=0.8)
    plots.log_axis(axes.xaxis, plots.plain)
    plots.finish(axes, "epochs D / U", "loss above that with most unique tokens (%)")
    plots.legend(axes)
    text = "What repeating text costs: the same N and D with fewer unique tokens U, relative to the largest U trained."
    return Drawing(figure, text, [cell for cells in families.values() for cell in cells])


def learning_rates(study: Study, sizes: Sizes) -> Drawing:
    """Loss against learning rate per size and budget; the best marked, diverged ones at the top edge."""
    tried = (cell for cell in study.cells if cell.learning_rate and (cell.done or cell.outcome == DIVERGED))
    families = _families(tried, lambda cell: (cell.n, cell.d, cell.u, cell.layers, cell.width), _rate)
    families = {key: cells for key, cells in families.items() if any(cell.done for cell in cells)}
    if not families:
        raise NoDataError("no size and budget was trained with more than one learning rate")
    figure, (axes,) = plots.subplots(1, width=6.8)
    for number, ((n, d, *_), cells) in enumerate(sorted(families.items(), key=lambda family: family[0][:3])):
        done = [cell for cell in cells if cell.done]
        style = {"linewidth": 1.2, "linestyle": LINES[number % 4], "label": f"N = {count(n)}, D = {count(d)}"}
        plots.curve(axes, done, _rate, sizes(n), **style)
        loss, rate = min((loss, rate) for rate, loss in zip(*plots.means(done, _rate), strict=True))
        axes.plot(rate, loss, "*", color=sizes(n), markersize=14, markeredgecolor="black", zorder=4)
    shown = [cell for cells in families.values() for cell in cells]
    lost = [cell for cell in shown if not cell.done]
    if lost:
        axes.plot([], [], label="diverged", **{**plots.CROSS, "color": "0.4"})
    for row, cell in enumerate(sorted(lost, key=lambda cell: cell.n)):
        cross = {**plots.CROSS, "color": sizes(cell.n), "label": "_"}
        axes.plot(_rate(cell), 0.98 - 0.045 * (row % 6), transform=axes.get_xaxis_transform(), **cross)
    plots.finish_loss(axes, "learning rate (highest of the schedule)", say="{:.2g}".format)
    text = "Loss against learning rate; star: the best tried. A star at an end says that the best may lie beyond."
    return Drawing(figure, text + (" Crosses at the top: diverged." if lost else ""), shown)


def _families(
    cells: Iterable[Cell], same: Callable[[Cell], tuple[Any, ...]], varied: Callable[[Cell], float]
) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells with the same key, of those keys for which something was varied."""
    found: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        found[same(cell)].append(cell)
    return {key: some for key, some in found.items() if len({varied(cell) for cell in some}) > 1}


def _rate(cell: Cell) -> float:
    return cell.learning_rate or 0.0
