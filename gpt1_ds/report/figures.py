"""How all figures look and become files; those of a run's page, and what those of a scaling study share: a colour per
size, axes people can read, cells that belong together."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.text import count
from gpt1_ds.report.scaling_results import Cell, ScalingResults
from gpt1_ds.scaling.points import groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BY_KIND = ("gradient_norms", "weight_norms", "update_norms")  # of layers
FILES = ("loss", "learning_rate", "gradient_norm", "throughput", "zero_shot", *BY_KIND)
MARKERS = "osD^"
FEW = 8  # curves that a legend names within the axes


def set_up(extra: str = "report") -> None:
    """The look of all figures. Raises UserError where matplotlib is not installed, which comes with `extra`."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it complains of a home that it may not write
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError(f"matplotlib is not installed: pip install 'gpt1-ds[{extra}]'") from None
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"})


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches, whose parts do not cover one another. Raises UserError as `set_up` does."""
    set_up()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw(data: dict[str, Any]) -> dict[str, Any]:
    """Name -> matplotlib figure of those charts of a page (`curves.data`) that also become files."""
    set_up()
    return {chart["name"]: _figure(chart, data["runs"]) for chart in data["charts"] if chart["name"] in FILES}


def as_svg(figure: Any) -> str:
    """The figure as an <svg> element to put into a page."""
    return _element(_svg(figure))


def save(figure: Any, stem: Path) -> str:
    """Write `stem`.png and `stem`.svg; the latter's <svg> element, since drawing takes long."""
    text = _svg(figure)
    save_png(figure, stem.with_suffix(".png"))
    write_atomic(stem.with_suffix(".svg"), text)
    return _element(text)


def save_png(figure: Any, path: Path) -> None:
    """Write it whole, or not at all."""
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=130, bbox_inches="tight")
    write_atomic(path, pixels.getvalue())


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def _element(text: str) -> str:
    return text[text.index("<svg") :]


def _figure(chart: dict[str, Any], runs: Sequence[dict[str, Any]]) -> Any:
    """Against training tokens; zero-shot probes against steps on a log scale, as in Figure 2 (right) of the paper, a
    kind of marker per run, and controls dashed.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    probes, by_kind = chart["name"] == "zero_shot", chart["name"] in BY_KIND
    figure = Figure(figsize=(7.2, 4.0 if chart["marks"] or chart["name"] == "loss" or by_kind else 2.4))
    axes = figure.subplots()
    crowded = len(chart["series"]) > FEW
    for one in chart["series"]:
        table = runs[one["run"]]["tables"][one["table"]]
        marker = MARKERS[one["run"] % 4] if probes else "o"
        style: dict[str, Any] = {"circles": {"marker": marker, "ms": 3}, "dashes": {"linestyle": "--", "lw": 1}}.get(
            one["style"], {"alpha": 0.6, "lw": 1}
        )
        x, y = table["step" if probes else "tokens"], table[one["key"]]
        beside = crowded and one["table"] == "train" and chart["name"] == "loss"  # in the colour of its held-out curve
        axes.plot(x, y, label=None if beside else one["label"], color=_line_colour(one["colour"], crowded), **style)
    _marks(axes, chart["marks"])
    axes.set_ylabel(chart["title"], fontsize=8)
    axes.set_xlabel("training steps" if probes else "training tokens")
    if chart.get("log"):
        axes.set_yscale("log")
    if probes:
        log_axis(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if value else "0"))
    axes.grid(alpha=0.25)
    outside = (
        {"loc": "center left", "bbox_to_anchor": (1.14 if chart["marks"] else 1.02, 0.5)}
        if probes or crowded or by_kind
        else {}
    )
    axes.legend(frameon=False, fontsize=8, **outside)
    return figure


def _line_colour(number: int, crowded: bool) -> Any:
    """The `number`-th of ten colours, or of twenty where there are many curves."""
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20) if crowded else f"C{number}"


def _marks(axes: Axes, marks: Sequence[dict[str, Any]]) -> None:
    """Levels to compare with, as lines named outside the axes, where no curve is."""
    found = sorted((mark["value"], mark["label"]) for mark in marks)
    for height, _ in found:
        axes.axhline(height, color="0.5", linestyle=":", linewidth=1)
    low, high = axes.get_ylim()
    for place, (height, name) in zip(apart([(y - low) / (high - low) for y, _ in found], 0.05), found, strict=True):
        axes.annotate(f"{name} {height:.2f}", (1.01, place), xycoords="axes fraction", color="0.4", va="center")


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, each moved up as little as leaves `gap` between neighbours."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    return moved


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
    """A figure, what its caption must say, and the cells in it."""

    figure: Any
    text: str
    cells: Collection[Cell]


class NoDataError(Exception):
    """Says why a figure cannot be drawn."""


def alike(cells: Iterable[Cell], key: Callable[[Cell], float]) -> list[tuple[float, list[Cell]]]:
    """Cells whose key is meant to be the same: it may differ by what rounding to whole steps or widths does."""
    return groups(cells, key, 1.03)


def means(cells: Iterable[Cell], key: Callable[[Cell], float]) -> tuple[list[float], list[float]]:
    """Each value of `key` and the mean loss of its cells (seeds), ascending."""
    found = groups(cells, key, 1 + 1e-6)
    return [at for at, _ in found], [fmean(cell.final_loss for cell in some) for _, some in found]


class SizeColours:
    """A colour per N, the same in every figure of a study: dark is small."""

    def __init__(self, study: ScalingResults) -> None:
        self._sizes = [n for n, _ in alike(study.cells, lambda cell: cell.n)]

    def __call__(self, n: float) -> Any:
        nearest = min(range(len(self._sizes)), key=lambda place: abs(math.log(self._sizes[place] / n)))
        return _colour("viridis", nearest / max(len(self._sizes) - 1, 1))

    def legend(self, figure: Any, cells: Iterable[Cell]) -> None:
        """Beside the figure, where no line of it names a size; after them what its panels have labelled."""
        from matplotlib.lines import Line2D

        named = spread([n for n, _ in alike(cells, lambda cell: cell.n)], LEGEND_ROWS)
        handles = [Line2D([], [], color=self(n), label=f"N = {count(n)}", **_FITTED) for n in named]
        labelled = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
        handles += {label: handle for panel in labelled for handle, label in panel}.values()
        figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)


def budget_colours(values: Iterable[float]) -> Callable[[float], Any]:
    """A colour per D or C: dark is small; another colour map than that of sizes, as they are not to be mixed up."""
    from matplotlib.colors import LogNorm

    known = list(values)
    norm = LogNorm(min(known), max(known))
    return lambda value: _colour("plasma", norm(value))


def _colour(name: str, place: float) -> Any:
    import matplotlib as mpl

    return mpl.colormaps[name](0.88 * min(max(place, 0.0), 1.0))  # the last yellow is hard to see on white


def subplots(panels: int, width: float = 4.4, height: float = 3.7) -> tuple[Any, list[Axes]]:
    """A figure with panels side by side, up to three in a row."""
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


def point(axes: Axes, x: float, y: float, colour: Any, held_out: bool, **style: Any) -> None:
    """A dot, or an open square of a cell that is held out."""
    axes.plot(x, y, color=colour, linestyle="", **(_HELD_OUT if held_out else _FITTED), **style)


def curve(axes: Axes, cells: Iterable[Cell], key: Callable[[Cell], float], colour: Any, **style: Any) -> None:
    """A line through the mean losses of `cells`."""
    axes.plot(*means(cells, key), color=colour, **{"linewidth": 1, **_FITTED, **style})


def finish(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(literal(x))
    axes.set_ylabel(literal(y))
    axes.grid(alpha=0.25)
    if title:
        axes.set_title(literal(title), fontsize=10)


def finish_loss(axes: Axes, x: str, title: str = "", say: Callable[[float], str] = count, named: bool = True) -> None:
    """Loss against `x`, both logarithmic; `say` writes a tick of `x`; `named`: with a legend."""
    log_axis(axes.xaxis, say)
    log_axis(axes.yaxis, plain)
    finish(axes, x, LOSS, title)
    if named:
        legend(axes)


def log_axis(axis: Any, say: Callable[[float], str] = count) -> None:
    """A logarithmic axis with round ticks, few decades or many; `say` writes a tick."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes, name = axis.axes, axis.axis_name
    axes.set(**{f"{name}scale": "log"})
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    most = 6 if name == "x" else 7
    decades = math.log10(high / low)
    if decades < 0.7:
        axis.set_major_locator(FixedLocator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)))
    else:
        subs = (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=most + 4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: say(value)))
    axes.set(**{f"{name}lim": (low, high)})


def legend(axes: Axes) -> None:
    """Beside the axes, so that it never covers a point; of many entries, evenly spread ones."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    kept = spread(list(named), LEGEND_ROWS)
    if kept:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        axes.legend([named[label] for label in kept], kept, frameon=False, fontsize=8, **place)


def plain(value: float) -> str:
    return f"{value:.6g}"


def power(value: float) -> str:
    """2e15 -> '2·10¹⁵': FLOPs have no suffix that people know."""
    exponent = math.floor(math.log10(value) + 1e-9)
    front = f"{value / 10**exponent:.3g}"
    return ("" if front == "1" else f"{front}·") + "10" + str(exponent).translate(_RAISED)


def literal(text: str) -> str:
    """A name from a file as itself: matplotlib takes what stands between dollars for a formula."""
    return text.replace("$", r"\$")


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]
