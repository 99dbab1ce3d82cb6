"""What the figures of a scaling study share: a colour per size, axes people can read, cells that belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.text import count
from gpt1_ds.report.figures import log_axis
from gpt1_ds.report.scaling_results import Cell, ScalingResults
from gpt1_ds.scaling.points import FRESH_EPOCHS, KINDS, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LOSS = "held-out loss (nats per token)"
SIZE = "parameters N"
TOKENS = "training tokens D"
FLOPS = "training compute C (FLOPs)"
CROSS: dict[str, Any] = {"color": "crimson", "marker": "x", "markersize": 7, "markeredgewidth": 1.6, "linestyle": ""}
LINES = ("-", "--", "-.", ":")
LEGEND_ROWS = 14  # sizes or budgets named in a legend; of more, some
_HELD_OUT: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "markeredgewidth": 1.4, "markersize": 5.5}
_FITTED: dict[str, Any] = {"marker": "o", "markersize": 4.5}
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption, and the cells in it."""

    figure: Any
    text: str
    cells: Collection[Cell]


class NoDataError(Exception):
    """Says why a figure cannot be drawn."""


def law_cells(study: ScalingResults) -> list[Cell]:
    """Returns finished cells that measure L(N, D): at the best learning rate, and of each (N, D) those with most unique
    tokens. Aspect ratios and repetition have figures of their own.
    """
    cells = study.done
    for is_wanted in (lambda x: x.best_rate, lambda x: x.kind in KINDS, lambda x: x.epochs <= FRESH_EPOCHS):
        cells = list(filter(is_wanted, cells)) or cells
    most_unique: dict[tuple[float, float], float] = {}
    for cell in cells:
        most_unique[cell.n, cell.d] = max(most_unique.get((cell.n, cell.d), 0.0), cell.u)
    return [cell for cell in cells if cell.u == most_unique[cell.n, cell.d]]


def left_out(study: ScalingResults, cells: list[Cell]) -> str:
    """Returns what `law_cells` left out, for a caption."""
    if len(cells) == len(study.done):
        return ""
    text = " Of several learning rates the best is taken, of several U the largest"
    repeated = any(cell.epochs > FRESH_EPOCHS for cell in study.done)
    return text + (f"; more than {FRESH_EPOCHS:g} epochs are left out." if repeated else ".")


def groups_alike(cells: Iterable[Cell], key: Callable[[Cell], float]) -> list[tuple[float, list[Cell]]]:
    """Returns (key, its cells), ascending, where keys are meant to be the same: they may differ by what rounding to
    whole steps or widths does.
    """
    return groups(cells, key, 1.03)


def mean_losses(cells: Iterable[Cell], key: Callable[[Cell], float]) -> tuple[list[float], list[float]]:
    """Returns each value of `key` and the mean loss of its cells (seeds), ascending."""
    seeds = groups(cells, key, 1 + 1e-6)
    return [value for value, _ in seeds], [fmean(cell.final_loss for cell in same) for _, same in seeds]


class SizeColours:
    """A colour per N, the same in every figure of a study: dark is small."""

    def __init__(self, study: ScalingResults) -> None:
        self._sizes = [n for n, _ in groups_alike(study.cells, lambda cell: cell.n)]

    def __call__(self, n: float) -> Any:
        nearest = min(range(len(self._sizes)), key=lambda place: abs(math.log(self._sizes[place] / n)))
        return _colour("viridis", nearest / max(len(self._sizes) - 1, 1))

    def legend(self, figure: Any, cells: Iterable[Cell]) -> None:
        """Draws the sizes beside the figure, for lines that name none, and after them what the panels have labelled."""
        from matplotlib.lines import Line2D

        named = evenly([n for n, _ in groups_alike(cells, lambda cell: cell.n)], LEGEND_ROWS)
        handles = [Line2D([], [], color=self(n), label=f"N = {count(n)}", **_FITTED) for n in named]
        labelled = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
        handles += {label: handle for panel in labelled for handle, label in panel}.values()
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)


def budget_colours(values: Iterable[float]) -> Callable[[float], Any]:
    """Returns a colour per D or C: dark is small; another colour map than that of sizes, as they are not to be mixed
    up.
    """
    from matplotlib.colors import LogNorm

    known = list(values)
    norm = LogNorm(min(known), max(known))
    return lambda value: _colour("plasma", norm(value))


def _colour(name: str, place: float) -> Any:
    import matplotlib as mpl

    return mpl.colormaps[name](0.88 * min(max(place, 0.0), 1.0))  # the last yellow is hard to see on white


def subplots(panels: int, width: float = 4.4, height: float = 3.7) -> tuple[Any, list[Axes]]:
    """Returns a figure with panels side by side, up to three in a row."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(panels, 3)
    rows = -(-panels // columns)
    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.06)
    figure = Figure(figsize=(max(6.4, width * columns), height * rows), layout=layout)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def plot_point(axes: Axes, x: float, y: float, colour: Any, held_out: bool, **style: Any) -> None:
    """A dot, or an open square of a cell that is held out."""
    axes.plot(x, y, color=colour, linestyle="", **(_HELD_OUT if held_out else _FITTED), **style)


def plot_curve(axes: Axes, cells: Iterable[Cell], key: Callable[[Cell], float], colour: Any, **style: Any) -> None:
    """A line through the mean losses of `cells`."""
    axes.plot(*mean_losses(cells, key), color=colour, **{"linewidth": 1, **_FITTED, **style})


def finish(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(literal(x))
    axes.set_ylabel(literal(y))
    axes.grid(alpha=0.25)
    if title:
        axes.set_title(literal(title), fontsize=10)


def finish_loss(axes: Axes, x: str, title: str = "", say: Callable[[float], str] = count, named: bool = True) -> None:
    """Loss against `x`, both logarithmic; `say` writes a tick of `x`; `named`: with a legend."""
    log_axis(axes.xaxis, say)
    log_axis(axes.yaxis, six_digits)
    finish(axes, x, LOSS, title)
    if named:
        legend(axes)


def legend(axes: Axes) -> None:
    """Draws a legend beside the axes, so that it never covers a point; of many entries, evenly spread ones."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    shown = evenly(list(named), LEGEND_ROWS)
    if shown:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        axes.legend([named[label] for label in shown], shown, frameon=False, fontsize=8, **place)


def six_digits(value: float) -> str:
    return f"{value:.6g}"


def power(value: float) -> str:
    """Returns 2e15 -> '2·10¹⁵': FLOPs have no suffix that people know."""
    exponent = math.floor(math.log10(value) + 1e-9)
    front = f"{value / 10**exponent:.3g}"
    return ("" if front == "1" else f"{front}·") + "10" + str(exponent).translate(_RAISED)


def literal(text: str) -> str:
    """Returns a name from a file as itself: matplotlib takes what stands between dollars for a formula."""
    return text.replace("$", r"\$")


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """Returns at most `most` of the values, evenly, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]
