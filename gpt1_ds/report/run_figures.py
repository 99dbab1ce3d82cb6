"""The charts of a run's page that also become files, as matplotlib figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.text import count
from gpt1_ds.report.figures import log_axis, set_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BY_KIND = ("gradient_norms", "weight_norms", "update_norms")  # of layers
FILES = ("loss", "learning_rate", "gradient_norm", "throughput", "zero_shot", *BY_KIND)
MARKERS = "osD^"
FEW = 8  # curves that a legend names within the axes


def draw(data: dict[str, Any]) -> dict[str, Any]:
    """Returns name -> matplotlib figure of those charts of a page (`curves.data`) that also become files."""
    set_up()
    return {chart["name"]: _figure(chart, data["runs"]) for chart in data["charts"] if chart["name"] in FILES}


def _figure(chart: dict[str, Any], runs: Sequence[dict[str, Any]]) -> Any:
    """Against training tokens; zero-shot probes against steps on a log scale, as in Figure 2 (right) of the paper, a
    kind of marker per run, and controls dashed.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    name, marks, series = chart["name"], chart["marks"], chart["series"]
    is_loss, is_probes, is_by_kind = name == "loss", name == "zero_shot", name in BY_KIND
    crowded = len(series) > FEW
    figure = Figure(figsize=(7.2, 4.0 if marks or is_loss or is_by_kind else 2.4))
    axes = figure.subplots()
    for curve in series:
        table = runs[curve["run"]]["tables"][curve["table"]]
        unnamed = crowded and is_loss and curve["table"] == "train"  # in the colour of its held-out curve
        style = _style(curve["style"], MARKERS[curve["run"] % 4] if is_probes else "o")
        style |= {"label": None if unnamed else curve["label"], "color": _line_colour(curve["colour"], crowded)}
        axes.plot(table["step" if is_probes else "tokens"], table[curve["key"]], **style)
    _draw_marks(axes, marks)
    axes.set_ylabel(chart["title"], fontsize=8)
    axes.set_xlabel("training steps" if is_probes else "training tokens")
    if chart.get("log"):
        axes.set_yscale("log")
    if is_probes:
        log_axis(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if value else "0"))
    axes.grid(alpha=0.25)
    place: dict[str, Any] = {}
    if is_probes or is_by_kind or crowded:  # outside of the axes, beyond the names of marks
        place = {"loc": "center left", "bbox_to_anchor": (1.14 if marks else 1.02, 0.5)}
    axes.legend(frameon=False, fontsize=8, **place)
    return figure


def _style(name: str, marker: str) -> dict[str, Any]:
    if name == "circles":
        return {"marker": marker, "ms": 3}
    if name == "dashes":
        return {"linestyle": "--", "lw": 1}
    return {"alpha": 0.6, "lw": 1}


def _line_colour(number: int, crowded: bool) -> Any:
    """Returns the `number`-th of ten colours, or of twenty where there are many curves."""
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20) if crowded else f"C{number}"


def _draw_marks(axes: Axes, marks: Sequence[dict[str, Any]]) -> None:
    """Levels to compare with, as lines named outside the axes, where no curve is."""
    levels = sorted((mark["value"], mark["label"]) for mark in marks)
    for height, _ in levels:
        axes.axhline(height, color="0.5", linestyle=":", linewidth=1)
    low, high = axes.get_ylim()
    places = _spaced([(height - low) / (high - low) for height, _ in levels], 0.05)
    for place, (height, name) in zip(places, levels, strict=True):
        axes.annotate(f"{name} {height:.2f}", (1.01, place), xycoords="axes fraction", color="0.4", va="center")


def _spaced(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, each moved up as little as leaves `gap` between neighbours."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    return moved
