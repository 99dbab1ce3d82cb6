"""Figures of a scaling study about its cells: loss where one thing varies (depth, epochs over the same text, the
learning rate); each cell's training curve and its scores on tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import count
from gpt1_ds.report.figures import log_axis
from gpt1_ds.report.scaling_axes import (
    CROSS,
    FLOPS,
    LINES,
    LOSS,
    Drawing,
    NoDataError,
    SizeColours,
    budget_colours,
    evenly,
    finish,
    finish_loss,
    groups_alike,
    law_cells,
    legend,
    mean_losses,
    plot_curve,
    plot_point,
    power,
    six_digits,
    subplots,
)
from gpt1_ds.report.scaling_results import Cell, DownstreamScore, ScalingResults
from gpt1_ds.scaling.isoflop import WIDTH
from gpt1_ds.scaling.laws import predicted_loss
from gpt1_ds.scaling.points import KINDS, groups
from gpt1_ds.scaling.tables import DIVERGED, LOST
from gpt1_ds.tracking.record import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SAME_SIZE = 1.15  # largest ratio of sizes that are on one iso-N curve
POINTS = 60_000  # of all training curves together, so that the page stays small
MOST_PANELS = 8


def depth(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against layers: a ladder at equal data or compute, and iso-N curves where the width is free."""
    ladder = [cell for cell in law_cells(study) if cell.layers and cell.kind in KINDS]
    shaped = [cell for cell in study.done if cell.best_rate and cell.layers and cell.kind not in KINDS]
    panels = [cells for cells in (ladder, shaped) if len({cell.layers for cell in cells}) > 1]
    if not panels:
        raise NoDataError("no two finished cells differ in depth, or results.csv does not say how deep they are")
    figure, places = subplots(len(panels), width=5.6, height=4.0)
    text = "Loss against depth."
    for axes, cells in zip(places, panels, strict=True):
        text += _iso_n(axes, cells, sizes) if cells is shaped else _ladder(axes, cells)
        log_axis(axes.yaxis, six_digits)
        axes.set_xticks(sorted({int(cell.layers or 0) for cell in cells}))
        legend(axes)
    return Drawing(figure, text, [cell for cells in panels for cell in cells])


def _layers(cell: Cell) -> float:
    return float(cell.layers or 0)


def _ladder(axes: Axes, cells: list[Cell]) -> str:
    """A line per token budget, where depths have some in common, else per compute budget; the caption's sentence."""
    budgets = groups_alike(cells, lambda cell: cell.d)
    of_tokens = any(len({cell.layers for cell in members}) > 2 for _, members in budgets)
    if not of_tokens:
        budgets = groups(cells, lambda cell: cell.flops, WIDTH)
    colour = budget_colours(budget for budget, _ in budgets)
    for budget, members in budgets:
        label = f"D = {count(budget)}" if of_tokens else f"C = {power(float(f'{budget:.2g}'))}"
        plot_curve(axes, members, _layers, colour(budget), label=label)
    finish(axes, "layers (width grows with them)", LOSS, "ladder")
    return f" Ladder: a line per {'token' if of_tokens else 'compute'} budget, the width growing with depth."


def _iso_n(axes: Axes, cells: list[Cell], sizes: SizeColours) -> str:
    """Cells of one token budget and about one size joined, those of one width by dots; the caption's sentence."""
    budgets = [d for d, _ in groups_alike(cells, lambda cell: cell.d)]
    for number, d in enumerate(budgets):
        of_budget = [cell for cell in cells if math.isclose(cell.d, d, rel_tol=0.05)]
        budget = f", D = {count(d)}" if len(budgets) > 1 else ""
        for n, same_size in groups(of_budget, lambda cell: cell.n, SAME_SIZE):
            if len({cell.width for cell in same_size}) > 1:
                style = {"linestyle": LINES[number % 4], "linewidth": 1.2, "label": f"N ≈ {count(n)}{budget}"}
                plot_curve(axes, same_size, _layers, sizes(n), **style)
        of_depth = [cell for cell in of_budget if cell.kind == "depth"]
        for width in sorted({cell.width or 0 for cell in of_depth}):
            same_width = [cell for cell in of_depth if (cell.width or 0) == width]
            style = {"linestyle": ":", "linewidth": 1.2, "marker": "", "label": f"width {width or '?'}{budget}"}
            plot_curve(axes, same_width, _layers, "0.5", **style)
            for cell in same_width:
                plot_point(axes, _layers(cell), cell.final_loss, sizes(cell.n), held_out=False)
    finish(axes, "layers", LOSS, "depth and shape")
    return (
        f" Depth and shape: iso-N curves join cells of about the same size (within {SAME_SIZE - 1:.0%}) and data, the "
        "width shrinking as depth grows; dotted: the width stays, N grows with depth."
    )


def repetition(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss above that with the most unique tokens, at equal N and D, against epochs."""
    at_best_rate = (cell for cell in study.done if cell.best_rate)
    families = _families(at_best_rate, same=lambda cell: (cell.n, cell.d), varied=lambda cell: cell.u)
    if not families:
        raise NoDataError("no size was trained on the same number of tokens with different numbers of unique ones")
    figure, (axes,) = subplots(1, width=6.8)
    for number, ((n, d), cells) in enumerate(sorted(families.items())):
        most_unique = max(cell.u for cell in cells)
        fresh_losses = [cell.final_loss for cell in cells if cell.u == most_unique]
        fresh_loss = sum(fresh_losses) / len(fresh_losses)
        epochs, losses = mean_losses(cells, lambda cell: cell.epochs)
        excess = [100 * (loss / fresh_loss - 1) for loss in losses]
        label = f"N = {count(n)}, D = {count(d)}"
        axes.plot(epochs, excess, color=sizes(n), linestyle=LINES[number % 4], linewidth=1.2, label=label)
        for cell in cells:
            plot_point(axes, cell.epochs, 100 * (cell.final_loss / fresh_loss - 1), sizes(n), held_out=False)
        if study.law and study.law.form == "repeated":
            fine = np.geomspace(epochs[0], epochs[-1], 41)
            predicted = predicted_loss("repeated", study.law.values, n, d, np.append(d / fine, most_unique))[0]
            axes.plot(fine, 100 * (predicted[:-1] / predicted[-1] - 1), color="0.4", linewidth=0.9, label="fit")
    axes.axhline(0, color="0.6", linewidth=0.8)
    log_axis(axes.xaxis, six_digits)
    finish(axes, "epochs D / U", "loss above that with most unique tokens (%)")
    legend(axes)
    text = "What repeating text costs: the same N and D with fewer unique tokens U, relative to the largest U trained."
    return Drawing(figure, text, [cell for cells in families.values() for cell in cells])


def learning_rates(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against learning rate per size and budget; the best marked, diverged ones at the top edge."""
    tried = (cell for cell in study.cells if cell.learning_rate and (cell.done or cell.outcome == DIVERGED))
    family_of = attrgetter("n", "d", "u", "layers", "width")
    families = _families(tried, same=family_of, varied=_rate)
    families = {key: cells for key, cells in families.items() if any(cell.done for cell in cells)}
    if not families:
        raise NoDataError("no size and budget was trained with more than one learning rate")
    figure, (axes,) = subplots(1, width=6.8)
    for number, (key, cells) in enumerate(sorted(families.items(), key=lambda family: family[0][:3])):
        (n, d, *_), done = key, [cell for cell in cells if cell.done]
        style = {"linewidth": 1.2, "linestyle": LINES[number % 4], "label": f"N = {count(n)}, D = {count(d)}"}
        plot_curve(axes, done, _rate, sizes(n), **style)
        lost_rates = [_rate(cell) for cell in study.cells if cell.outcome in LOST and family_of(cell) == key]
        rate, loss = _best_rate(done, lost_rates)
        axes.plot(rate, loss, "*", color=sizes(n), markersize=14, markeredgecolor="black", zorder=4)
    shown = [cell for cells in families.values() for cell in cells]
    diverged = [cell for cell in shown if not cell.done]
    if diverged:
        axes.plot([], [], label="diverged", **{**CROSS, "color": "0.4"})
    for row, cell in enumerate(sorted(diverged, key=lambda cell: cell.n)):
        cross = {**CROSS, "color": sizes(cell.n), "label": "_"}
        axes.plot(_rate(cell), 0.98 - 0.045 * (row % 6), transform=axes.get_xaxis_transform(), **cross)
    finish_loss(axes, "learning rate (highest of the schedule)", say="{:.2g}".format)
    text = "Loss against learning rate; star: the best of what lost fewest seeds. At an end, the best may lie beyond."
    return Drawing(figure, text + (" Crosses at the top: diverged." if diverged else ""), shown)


def _best_rate(done: list[Cell], lost_rates: list[float]) -> tuple[float, float]:
    """(rate, mean loss) of the least loss among the rates at which fewest seeds were lost."""
    ranked = []
    for rate, loss in zip(*mean_losses(done, _rate), strict=True):
        lost_seeds = sum(math.isclose(rate, lost, rel_tol=1e-6) for lost in lost_rates)
        ranked.append((lost_seeds, loss, rate))
    _, loss, rate = min(ranked)
    return rate, loss


def _families(
    cells: Iterable[Cell], same: Callable[[Cell], tuple[Any, ...]], varied: Callable[[Cell], float]
) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by what is the `same` of them, where they differ in what is `varied`."""
    families: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        families[same(cell)].append(cell)
    return {key: members for key, members in families.items() if len({varied(cell) for cell in members}) > 1}


def _rate(cell: Cell) -> float:
    return cell.learning_rate or 0.0


def training_curves(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Held-out loss against tokens of every cell that has a run folder, diverged ones in red, which do not scale it."""
    curves = {cell: curve for cell in study.cells if (curve := _curve(study, cell))}
    if not curves:
        raise NoDataError("no run folder of a cell holds a held-out curve")
    panels: dict[str, list[Cell]] = defaultdict(list)
    for cell in curves:
        panels[cell.arm].append(cell)
    for arm in list(panels)[MOST_PANELS:]:
        panels["other arms"] += panels.pop(arm)
    figure, places = subplots(len(panels), width=4.0 if len(panels) > 1 else 7.0, height=3.2)
    tokens, losses = zip(*(point for curve in curves.values() for point in curve), strict=True)
    not_diverged = [loss for cell, curve in curves.items() if cell.outcome != DIVERGED for _, loss in curve]
    top = 1.03 * max(not_diverged or losses)
    for axes, (arm, cells) in zip(places, panels.items(), strict=True):
        for cell in cells:
            curve = evenly(curves[cell], max(POINTS // len(curves), 10))
            colour = "crimson" if cell.outcome == DIVERGED else sizes(cell.n)
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, alpha=0.8)
            if cell.outcome == DIVERGED:
                axes.plot(curve[-1][0], min(curve[-1][1], top), zorder=5, clip_on=False, **CROSS)
        axes.set(xlim=(min(tokens) / 1.2, max(tokens) * 1.2), ylim=(min(losses) / 1.03, top))
        finish_loss(axes, "tokens trained on so far", arm, named=False)
    sizes.legend(figure, curves)
    text = "Held-out loss while training, of every cell whose run folder is here, a panel per arm of the study."
    if len(not_diverged) < len(losses):
        text += " Red, to its last finite value (at the top edge: above it): diverged."
    return Drawing(figure, text, curves)


def _curve(study: ScalingResults, cell: Cell) -> list[tuple[float, float]]:
    """(tokens, held-out loss), two finite ones or more; the batches' losses of a run that diverged before two
    evaluations. Nothing of a run that has neither.
    """
    run = study.run_dir(cell)
    lines = read_records(run.metrics) if run else []
    for kind in ("eval", "train") if cell.outcome == DIVERGED else ("eval",):
        points = [
            (line["tokens"], line["loss"])
            for line in lines
            if line.get("kind") == kind and line.get("tokens") and _finite(line.get("loss"))
        ]
        if len(points) > 1:
            return points
    return []


def downstream(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Score against pre-training compute, a panel per task and metric."""
    panels: dict[tuple[str, str], list[DownstreamScore]] = defaultdict(list)
    for score in study.downstream:
        panels[score.task, score.metric].append(score)
    if not panels:
        raise NoDataError("no downstream.csv: no task was evaluated on the cells")
    cells = {cell.cell: cell for cell in study.cells}
    figure, places = subplots(len(panels), width=3.8, height=3.0)
    for axes, ((task, metric), scores) in zip(places, panels.items(), strict=True):
        for score in scores:
            cell = cells.get(score.cell)
            colour, held_out = (sizes(cell.n), cell.held_out) if cell else ("0.5", False)
            plot_point(axes, score.flops, score.value, colour, held_out)
            if score.control is not None:
                axes.plot(score.flops, score.control, "x", color="0.5", markersize=4, label="control")
        for chance in {score.chance for score in scores if score.chance is not None}:
            axes.axhline(chance, color="C3", linewidth=1, label="chance")
        log_axis(axes.xaxis, power)
        finish(axes, FLOPS, metric, task)
    known = [cells[score.cell] for score in study.downstream if score.cell in cells]
    sizes.legend(figure, known)
    text = "Scores on tasks against the compute of pre-training, a panel per task."
    if any(score.control is not None or score.chance is not None for score in study.downstream):
        text += " Grey crosses are controls, a red line is chance, or the most frequent label."
    return Drawing(figure, text, known)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
