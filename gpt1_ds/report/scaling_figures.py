"""Figures of a scaling study: loss against size, data and compute (isoFLOP curves, the fit beside its points, the
compute frontier); one thing varied (depth, epochs over the same text, the learning rate); single cells and what the
fit misses of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import count
from gpt1_ds.report import figures
from gpt1_ds.report.figures import LINES, Drawing, NoDataError, SizeColours
from gpt1_ds.report.scaling_results import Cell, DownstreamScore, ScalingResults
from gpt1_ds.scaling.isoflop import WIDTH, parabola
from gpt1_ds.scaling.laws import exponents, frontier, has_frontier, predicted_loss
from gpt1_ds.scaling.points import FRESH_EPOCHS, KINDS, groups
from gpt1_ds.scaling.predict import Fit
from gpt1_ds.scaling.tables import DIVERGED, LOST
from gpt1_ds.tracking.record import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Curve = tuple[list[float], list[float]]
CURVES = 8  # isoFLOP curves shown
BESIDE = 1.07  # where a prediction is drawn, in parts of its C, so that both can be seen
LEVELS = 6  # curves of one figure at most, where the cells give no shared values


def once(study: ScalingResults) -> list[Cell]:
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


def chosen(study: ScalingResults, cells: list[Cell]) -> str:
    """What `once` left out, for a caption."""
    if len(cells) == len(study.done):
        return ""
    text = " Of several learning rates the best is taken, of several U the largest"
    repeated = any(cell.epochs > FRESH_EPOCHS for cell in study.done)
    return text + (f"; more than {FRESH_EPOCHS:g} epochs are left out." if repeated else ".")


def isoflop_figure(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against N at equal compute; a parabola in log N and its lowest point."""
    cells = once(study)
    curves = _measured(cells)
    how = f"of cells whose compute is equal within {WIDTH - 1:.0%}, seeds averaged"
    if not curves:
        curves = _interpolated(cells)
        how = "read off between the budgets of each size, on straight lines in log C and log loss, never beyond them"
    if not curves:
        raise NoDataError("no compute budget has three sizes, not even between the budgets that were trained")
    figure, (axes,) = figures.subplots(1)
    colour = figures.budget_colours(curves)
    edges = 0
    for flops, (n, losses) in curves.items():
        edges += not _draw_parabola(axes, n, losses, colour(flops))
        axes.plot(n, losses, "o", color=colour(flops), ms=4.5, label=f"C = {figures.power(float(f'{flops:.2g}'))}")
    figures.finish_loss(axes, figures.SIZE)
    text = f"Loss against size at equal training compute ({how}). Star: lowest point of the parabola in log N"
    text += f"; {edges} of {len(curves)} curves have none within the sizes trained." if edges else "."
    text += chosen(study, cells) + (
        " Such minima are biased where the sizes are few or off centre; the fit of all cells below is the one to use."
    )
    return Drawing(figure, text, cells)


def _measured(cells: list[Cell]) -> dict[float, Curve]:
    """C -> (N, loss) of at least three sizes; empty where it would be of the smaller part of the cells, by accident."""
    found = groups(cells, lambda cell: cell.flops, WIDTH)
    found = [(flops, some) for flops, some in found if len(figures.alike(some, lambda cell: cell.n)) >= 3]
    if 2 * sum(len(some) for _, some in found) < len(cells):
        return {}
    return {flops: figures.means(some, lambda cell: cell.n) for flops, some in figures.spread(found, CURVES)}


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
    lines = {n: figures.means(some, lambda cell: cell.flops) for n, some in figures.alike(cells, lambda cell: cell.n)}
    lines = {n: line for n, line in lines.items() if len(line[0]) > 1}
    ends = sorted({end for flops, _ in lines.values() for end in flops})
    curves = {}
    for flops in figures.spread(ends, 40):
        over = {n: line for n, line in lines.items() if line[0][0] <= flops <= line[0][-1]}
        if len(over) >= 3:
            at = [math.exp(np.interp(math.log(flops), np.log(x), np.log(y))) for x, y in over.values()]
            curves[flops] = (list(over), at)
    return {flops: curves[flops] for flops in figures.spread(list(curves), 5)}


def fit_and_points(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss vs D per N and loss vs N per D, with the fitted curves."""
    law, cells = study.law, once(study)
    if law is None:
        raise NoDataError("no fit.json: `gpt1-ds scaling fit STUDY` has not been run")
    figure, (left, right) = figures.subplots(2, width=5.6, height=4.0)
    ns, ds = ([value for value, _ in figures.alike(cells, key)] for key in (lambda x: x.n, lambda x: x.d))
    levels = ds if len(ds) <= LEVELS + 2 else list(np.geomspace(ds[0], ds[-1], LEVELS))
    colour = figures.budget_colours(ds)
    for cell in cells:
        figures.point(left, cell.d, cell.final_loss, sizes(cell.n), cell.held_out)
        figures.point(right, cell.n, cell.final_loss, colour(cell.d), cell.held_out)
    d_ends = np.geomspace(ds[0] / 1.3, ds[-1] * 1.3, 60)
    n_ends = np.geomspace(min(cell.n for cell in cells) / 1.3, max(cell.n for cell in cells) * 1.3, 60)
    for n in ns:
        curve = predicted_loss(law.form, law.values, n, d_ends, d_ends)[0]
        left.plot(d_ends, curve, color=sizes(n), linewidth=1, label=f"N = {count(n)}")
    for d in levels:
        curve = predicted_loss(law.form, law.values, n_ends, d, d)[0]
        right.plot(n_ends, curve, color=colour(d), linewidth=1, label=f"D = {count(d)}")
    figures.finish_loss(left, figures.TOKENS)
    figures.finish_loss(right, figures.SIZE)
    text = "The fitted law (lines) beside the cells (points; open squares: held out, not used by the fit)."
    if levels is not ds:
        text += " Right: curves at evenly spaced D; the points' D lie between them, by colour."
    return Drawing(figure, text + chosen(study, cells), cells)


def compute(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss vs compute, the frontier of the fit with its interval, and the held-out points with theirs."""
    cells = once(study)
    figure, (axes,) = figures.subplots(1, width=7.6, height=4.6)
    for n, some in figures.alike(cells, lambda cell: cell.n):
        figures.curve(axes, some, lambda cell: cell.flops, sizes(n), marker="", alpha=0.7)
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
    figures.finish_loss(axes, figures.FLOPS, say=figures.power)
    return Drawing(figure, text, cells)


def _held_out(axes: Axes, study: ScalingResults, cells: list[Cell], sizes: SizeColours) -> str:
    for cell in (cell for cell in cells if cell.held_out):
        figures.point(axes, cell.flops, cell.final_loss, sizes(cell.n), held_out=True, zorder=5, label="held out")
    flops = {cell.cell: cell.flops for cell in study.cells}
    told = [point for point in study.fit.get("held_out") or [] if point.get("interval") and point["cell"] in flops]
    for point in told:
        (low, high), at = point["interval"], flops[point["cell"]] * BESIDE
        reach = [[max(point["predicted"] - low, 0)], [max(high - point["predicted"], 0)]]
        style: dict[str, Any] = {"fmt": "_", "color": "crimson", "capsize": 4, "zorder": 6, "label": "predicted, 95 %"}
        axes.errorbar(at, point["predicted"], reach, **style)
    if not told:
        return ""
    return " Open squares: held out; red, a little to the right: what the law says there, with its 95 % interval."


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


SAME_SIZE = 1.15  # largest ratio of sizes that are on one iso-N curve


def depth(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against layers: a ladder at equal data or compute, and iso-N curves where the width is free."""
    ladder = [cell for cell in once(study) if cell.layers and cell.kind in KINDS]
    shaped = [cell for cell in study.done if cell.best_rate and cell.layers and cell.kind not in KINDS]
    panels = [cells for cells in (ladder, shaped) if len({cell.layers for cell in cells}) > 1]
    if not panels:
        raise NoDataError("no two finished cells differ in depth, or results.csv does not say how deep they are")
    figure, places = figures.subplots(len(panels), width=5.6, height=4.0)
    text = "Loss against depth."
    for axes, cells in zip(places, panels, strict=True):
        text += _iso_n(axes, cells, sizes) if cells is shaped else _ladder(axes, cells)
        figures.log_axis(axes.yaxis, figures.plain)
        axes.set_xticks(sorted({int(cell.layers or 0) for cell in cells}))
        figures.legend(axes)
    return Drawing(figure, text, [cell for cells in panels for cell in cells])


def _layers(cell: Cell) -> float:
    return float(cell.layers or 0)


def _ladder(axes: Axes, cells: list[Cell]) -> str:
    by_data = figures.alike(cells, lambda cell: cell.d)
    shared = any(len({cell.layers for cell in some}) > 2 for _, some in by_data)
    lines = by_data if shared else groups(cells, lambda cell: cell.flops, WIDTH)
    colour = figures.budget_colours(value for value, _ in lines)
    for value, some in lines:
        label = f"D = {count(value)}" if shared else f"C = {figures.power(float(f'{value:.2g}'))}"
        figures.curve(axes, some, _layers, colour(value), label=label)
    figures.finish(axes, "layers (width grows with them)", figures.LOSS, "ladder")
    return f" Ladder: a line per {'token' if shared else 'compute'} budget, the width growing with depth."


def _iso_n(axes: Axes, cells: list[Cell], sizes: SizeColours) -> str:
    """Cells of one token budget and about one size joined; those of one width dashed."""
    budgets = [d for d, _ in figures.alike(cells, lambda cell: cell.d)]
    for number, d in enumerate(budgets):
        here = [cell for cell in cells if math.isclose(cell.d, d, rel_tol=0.05)]
        more = f", D = {count(d)}" if len(budgets) > 1 else ""
        for n, some in groups(here, lambda cell: cell.n, SAME_SIZE):
            if len({cell.width for cell in some}) > 1:
                style = {"linestyle": LINES[number % 4], "linewidth": 1.2, "label": f"N ≈ {count(n)}{more}"}
                figures.curve(axes, some, _layers, sizes(n), **style)
        fixed = [cell for cell in here if cell.kind == "depth"]
        for width in sorted({cell.width or 0 for cell in fixed}):
            some = [cell for cell in fixed if (cell.width or 0) == width]
            style = {"linestyle": ":", "linewidth": 1.2, "marker": "", "label": f"width {width or '?'}{more}"}
            figures.curve(axes, some, _layers, "0.5", **style)
            for cell in some:
                figures.point(axes, _layers(cell), cell.final_loss, sizes(cell.n), held_out=False)
    figures.finish(axes, "layers", figures.LOSS, "depth and shape")
    return (
        f" Depth and shape: iso-N curves join cells of about the same size (within {SAME_SIZE - 1:.0%}) and data, the "
        "width shrinking as depth grows; dotted: the width stays, N grows with depth."
    )


def repetition(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss above that with the most unique tokens, at equal N and D, against epochs."""
    families = _families((x for x in study.done if x.best_rate), lambda x: (x.n, x.d), lambda x: x.u)
    if not families:
        raise NoDataError("no size was trained on the same number of tokens with different numbers of unique ones")
    figure, (axes,) = figures.subplots(1, width=6.8)
    for number, ((n, d), cells) in enumerate(sorted(families.items())):
        fresh = max(cell.u for cell in cells)
        base = [cell.final_loss for cell in cells if cell.u == fresh]
        floor = sum(base) / len(base)
        epochs, losses = figures.means(cells, lambda cell: cell.epochs)
        excess = [100 * (loss / floor - 1) for loss in losses]
        label = f"N = {count(n)}, D = {count(d)}"
        axes.plot(epochs, excess, color=sizes(n), linestyle=LINES[number % 4], linewidth=1.2, label=label)
        for cell in cells:
            figures.point(axes, cell.epochs, 100 * (cell.final_loss / floor - 1), sizes(n), held_out=False)
        if study.law and study.law.form == "repeated":
            fine = np.geomspace(epochs[0], epochs[-1], 41)
            told = predicted_loss("repeated", study.law.values, n, d, np.append(d / fine, fresh))[0]
            curve = 100 * (told[:-1] / told[-1] - 1)
            axes.plot(fine, curve, color="0.4", linewidth=0.9, label="fit")
    axes.axhline(0, color="0.6", linewidth=0.8)
    figures.log_axis(axes.xaxis, figures.plain)
    figures.finish(axes, "epochs D / U", "loss above that with most unique tokens (%)")
    figures.legend(axes)
    text = "What repeating text costs: the same N and D with fewer unique tokens U, relative to the largest U trained."
    return Drawing(figure, text, [cell for cells in families.values() for cell in cells])


def learning_rates(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Loss against learning rate per size and budget; the best marked, diverged ones at the top edge."""
    tried = (cell for cell in study.cells if cell.learning_rate and (cell.done or cell.outcome == DIVERGED))
    point = attrgetter("n", "d", "u", "layers", "width")
    families = _families(tried, point, _rate)
    families = {key: cells for key, cells in families.items() if any(cell.done for cell in cells)}
    if not families:
        raise NoDataError("no size and budget was trained with more than one learning rate")
    figure, (axes,) = figures.subplots(1, width=6.8)
    for number, (key, cells) in enumerate(sorted(families.items(), key=lambda family: family[0][:3])):
        (n, d, *_), done = key, [cell for cell in cells if cell.done]
        style = {"linewidth": 1.2, "linestyle": LINES[number % 4], "label": f"N = {count(n)}, D = {count(d)}"}
        figures.curve(axes, done, _rate, sizes(n), **style)
        gone = [_rate(cell) for cell in study.cells if cell.outcome in LOST and point(cell) == key]
        means = zip(*figures.means(done, _rate), strict=True)
        _, loss, rate = min((sum(math.isclose(at, x, rel_tol=1e-6) for x in gone), loss, at) for at, loss in means)
        axes.plot(rate, loss, "*", color=sizes(n), markersize=14, markeredgecolor="black", zorder=4)
    shown = [cell for cells in families.values() for cell in cells]
    lost = [cell for cell in shown if not cell.done]
    if lost:
        axes.plot([], [], label="diverged", **{**figures.CROSS, "color": "0.4"})
    for row, cell in enumerate(sorted(lost, key=lambda cell: cell.n)):
        cross = {**figures.CROSS, "color": sizes(cell.n), "label": "_"}
        axes.plot(_rate(cell), 0.98 - 0.045 * (row % 6), transform=axes.get_xaxis_transform(), **cross)
    figures.finish_loss(axes, "learning rate (highest of the schedule)", say="{:.2g}".format)
    text = "Loss against learning rate; star: the best of what lost fewest seeds. At an end, the best may lie beyond."
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


NAMED = 60  # cells named below the residuals; of more, only their order is shown
DRAWS = 1500  # of the bootstrap in the cloud
POINTS = 60_000  # of all training curves together, so that the page stays small
MOST_PANELS = 8


def training_curves(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Held-out loss against tokens of every cell that has a run folder, diverged ones in red, which do not scale it."""
    curves = {cell: curve for cell in study.cells if (curve := list(_curve(study, cell)))}
    drawn = {cell: curve for cell, curve in curves.items() if len(curve) > 1 or cell.outcome == DIVERGED}
    if not drawn:
        raise NoDataError("no run folder of a cell holds a held-out curve")
    panels: dict[str, list[Cell]] = defaultdict(list)
    for cell in drawn:
        panels[cell.arm].append(cell)
    for arm in list(panels)[MOST_PANELS:]:
        panels["other arms"] += panels.pop(arm)
    figure, places = figures.subplots(len(panels), width=4.0 if len(panels) > 1 else 7.0, height=3.2)
    tokens, losses = zip(*(point for curve in drawn.values() for point in curve), strict=True)
    calm = [loss for cell in drawn if cell.outcome != DIVERGED for _, loss in drawn[cell]]
    top = 1.03 * max(calm or losses)
    for axes, (arm, cells) in zip(places, panels.items(), strict=True):
        for cell in cells:
            curve = figures.spread(drawn[cell], max(POINTS // len(drawn), 10))
            colour = "crimson" if cell.outcome == DIVERGED else sizes(cell.n)
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, alpha=0.8)
            if cell.outcome == DIVERGED:
                axes.plot(curve[-1][0], min(curve[-1][1], top), zorder=5, clip_on=False, **figures.CROSS)
        axes.set(xlim=(min(tokens) / 1.2, max(tokens) * 1.2), ylim=(min(losses) / 1.03, top))
        figures.finish_loss(axes, "tokens trained on so far", arm, named=False)
    sizes.legend(figure, drawn)
    text = "Held-out loss while training, of every cell whose run folder is here, a panel per arm of the study."
    text += " Red, to its last finite value (at the top edge: above it): diverged." if len(calm) < len(losses) else ""
    return Drawing(figure, text, drawn)


def _curve(study: ScalingResults, cell: Cell) -> Iterator[tuple[float, float]]:
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


def downstream(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """Score against pre-training compute, a panel per task and metric."""
    panels: dict[tuple[str, str], list[DownstreamScore]] = defaultdict(list)
    for score in study.downstream:
        panels[score.task, score.metric].append(score)
    if not panels:
        raise NoDataError("no downstream.csv: no task was evaluated on the cells")
    cells = {cell.cell: cell for cell in study.cells}
    figure, places = figures.subplots(len(panels), width=3.8, height=3.0)
    for axes, ((task, metric), scores) in zip(places, panels.items(), strict=True):
        for score in scores:
            cell = cells.get(score.cell)
            colour, held_out = (sizes(cell.n), cell.held_out) if cell else ("0.5", False)
            figures.point(axes, score.flops, score.value, colour, held_out)
            if score.control is not None:
                axes.plot(score.flops, score.control, "x", color="0.5", markersize=4, label="control")
        for chance in {score.chance for score in scores if score.chance is not None}:
            axes.axhline(chance, color="C3", linewidth=1, label="chance")
        figures.log_axis(axes.xaxis, figures.power)
        figures.finish(axes, figures.FLOPS, metric, task)
    known = [cells[score.cell] for score in study.downstream if score.cell in cells]
    sizes.legend(figure, known)
    text = "Scores on tasks against the compute of pre-training, a panel per task."
    if any(score.control is not None or score.chance is not None for score in study.downstream):
        text += " Grey crosses are controls, a red line is chance, or the most frequent label."
    return Drawing(figure, text, known)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def residuals(study: ScalingResults, sizes: SizeColours) -> Drawing:
    """(predicted - loss) / loss per cell in percent, by compute, with the band of what seeds differ by."""
    cells = sorted((cell for cell in study.done if cell.cell in study.predictions), key=lambda cell: cell.flops)
    if not cells:
        raise NoDataError("no predictions.csv: `gpt1-ds scaling fit STUDY` has not been run")
    named = len(cells) <= NAMED
    longest = max(len(cell.cell) for cell in cells) if named else 0  # its name stands below the axes
    figure, (axes,) = figures.subplots(1, max(7.2, 0.19 * len(cells)) if named else 8.0, max(4.0, 2 + 0.07 * longest))
    for place, cell in enumerate(cells):
        error = study.error_percent(cell) or 0.0
        axes.plot([place, place], [0, error], color=sizes(cell.n), linewidth=1)
        figures.point(axes, place, error, sizes(cell.n), cell.held_out)
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
    figures.finish(axes, "" if named else "cells, by training compute", "predicted against measured loss (%)")
    ticks = {place: figures.literal(cell.cell) for place, cell in enumerate(cells) if named}
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
    figure, places = figures.subplots(len(panels), width=4.2, height=3.5)
    for axes, panel in zip(places, panels, strict=True):
        if panel == "cloud":
            _cloud(axes, fit, samples)
        else:
            _histogram(axes, fit, panel, samples[panel])
    fitted = [cell for cell in study.done if not cell.held_out and cell.cell in study.predictions]
    return Drawing(figure, f"{text}.", fitted)


def _cloud(axes: Axes, fit: Mapping[str, Any], samples: dict[str, list[float]]) -> None:
    pairs = figures.spread(list(zip(samples["alpha"], samples["beta"], strict=True)), DRAWS)
    axes.plot(*zip(*pairs, strict=True), ".", color="steelblue", alpha=0.35, markersize=3, markeredgewidth=0)
    intervals = fit.get("intervals") or {}
    if "alpha" in intervals and "beta" in intervals:
        axes.plot(intervals["alpha"], [fit["beta"]] * 2, color="crimson", linewidth=1.4)
        axes.plot([fit["alpha"]] * 2, intervals["beta"], color="crimson", linewidth=1.4)
    axes.plot(fit["alpha"], fit["beta"], "o", color="crimson", markersize=4.5)
    figures.finish(axes, "alpha: exponent of N", "beta: exponent of D")


def _histogram(axes: Axes, fit: Mapping[str, Any], name: str, drawn: list[float]) -> None:
    axes.hist(drawn, bins=40, color="steelblue", alpha=0.6)
    for end in (fit.get("intervals") or {}).get(name, []):
        axes.axvline(end, color="crimson", linewidth=1, linestyle=":")
    if fit.get(name) is not None:
        axes.axvline(fit[name], color="crimson", linewidth=1.4)
    titles = {"E": "E: irreducible loss (nats per token)", "a": "a: N_opt grows as C to this power"}
    figures.finish(axes, titles.get(name, name), "draws")
