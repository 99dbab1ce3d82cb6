"""How all figures look and become files; those of a run's page, drawn from the data of its charts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import naming
from gpt1_ds.common.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = ("loss", "learning_rate", "gradient_norm", "throughput", "zero_shot")
MARKERS = "osD^"
FEW = 8  # curves that a legend names within the axes


def set_up(extra: str = "report") -> None:
    """The look of all figures. Raises UserError where matplotlib is not installed, which comes with `extra`."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError(f"matplotlib is not installed: pip install 'gpt1-ds[{extra}]'") from None
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"})


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
    with naming(stem):
        figure.savefig(stem.with_suffix(".png"), dpi=130, bbox_inches="tight")
        stem.with_suffix(".svg").write_text(text, encoding="utf-8")
    return _element(text)


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

    probes = chart["name"] == "zero_shot"
    figure = Figure(figsize=(7.2, 4.0 if chart["marks"] or chart["name"] == "loss" else 2.4))
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
    if probes:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if value else "0"))
    axes.grid(alpha=0.25)
    outside = (
        {"loc": "center left", "bbox_to_anchor": (1.14 if chart["marks"] else 1.02, 0.5)} if probes or crowded else {}
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
