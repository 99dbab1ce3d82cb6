"""Figures of single cells: how each of them trained, and what it scores downstream."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.report import plots
from gpt1_ds.report.plots import Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_results import Cell, Score, Study
from gpt1_ds.scaling.tables import DIVERGED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
            _trained(axes, plots.spread(drawn[cell], most), cell.outcome == DIVERGED, sizes(cell.n))
        axes.set(xlim=(min(tokens) / 1.2, max(tokens) * 1.2), ylim=(min(losses) / 1.03, max(losses) * 1.03))
        plots.finish_loss(axes, "tokens trained on so far", arm, named=False)
    sizes.legend(figure, drawn)
    text = "Held-out loss while training, of every cell whose run folder is here, a panel per arm of the study."
    text += " Red, to its last finite value: diverged." if any(cell.outcome == DIVERGED for cell in drawn) else ""
    return Drawing(figure, text, drawn)


def _trained(axes: Axes, curve: list[tuple[float, float]], diverged: bool, colour: Any) -> None:
    tokens, losses = zip(*curve, strict=True)
    axes.plot(tokens, losses, color="crimson" if diverged else colour, linewidth=1, alpha=0.8)
    if diverged:
        axes.plot(tokens[-1], losses[-1], zorder=5, **plots.CROSS)


def _curve(study: Study, cell: Cell) -> Iterator[tuple[float, float]]:
    """(tokens, held-out loss), the finite ones; the batches' losses of a run that diverged before two evaluations."""
    run = study.run_dir(cell)
    lines = list(read_jsonl(run.metrics)) if run else []
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
        plots.log_axis(axes.xaxis, plots.power)
        plots.finish(axes, plots.FLOPS, metric, task)
    known = [cells[score.cell] for score in study.downstream if score.cell in cells]
    sizes.legend(figure, known)
    return Drawing(figure, "Scores on tasks against the compute of pre-training, a panel per task.", known)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
