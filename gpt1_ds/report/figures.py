"""The figures of a report, one function each, all against training tokens."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.units import count
from gpt1_ds.report.evolution import evolution
from gpt1_ds.report.runs import RunStory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRAMS = {1: "unigram", 2: "bigram", 3: "trigram"}


def set_up(extra: str = "report") -> None:
    """The look of all figures. Raises UserError where matplotlib is not installed, which comes with `extra`."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError(f"matplotlib is not installed: pip install 'gpt1-ds[{extra}]'") from None
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"})


def draw(stories: Sequence[RunStory]) -> dict[str, Any]:
    """Name -> matplotlib figure."""
    set_up()
    plots: dict[str, Callable[[Axes, RunStory, str], None]] = {
        "loss": _loss,
        "learning_rate": _line("learning_rate", "learning rate"),
        "gradient_norm": _line("grad_norm", "gradient norm before clipping"),
        "throughput": _line("tokens_per_second", "tokens per second, all ranks"),
    }
    figures = {name: _figure(plot, stories, tall=name == "loss") for name, plot in plots.items()}
    if any(len(scores) > 1 for story in stories for scores in story.probes.values()):
        figures["zero_shot"] = evolution(stories)
    return figures


def as_svg(figure: Any) -> str:
    """The figure as an <svg> element to put into a page."""
    return _element(_svg(figure))


def save(figure: Any, stem: Path) -> str:
    """Write `stem`.png and `stem`.svg; the latter's <svg> element, since drawing takes long."""
    figure.savefig(stem.with_suffix(".png"), dpi=130, bbox_inches="tight")
    text = _svg(figure)
    stem.with_suffix(".svg").write_text(text, encoding="utf-8")
    return _element(text)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def _element(text: str) -> str:
    return text[text.index("<svg") :]


def _figure(plot: Callable[[Axes, RunStory, str], None], stories: Sequence[RunStory], tall: bool) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(7.2, 4.0 if tall else 2.4))
    axes = figure.subplots()
    for number, story in enumerate(stories):
        plot(axes, story, f"C{number}")
    if tall:
        _baselines(axes, stories)
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if value else "0"))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _loss(axes: Axes, story: RunStory, colour: str) -> None:
    """Training and held-out loss."""
    axes.plot(*_columns(story.train, "loss"), color=colour, alpha=0.45, lw=1, label=f"{story.name}: training batch")
    if story.held_out:
        axes.plot(*_columns(story.held_out, "loss"), color=colour, marker="o", ms=3, label=f"{story.name}: held out")
    axes.set_ylabel("nats per token")


def _baselines(axes: Axes, stories: Sequence[RunStory]) -> None:
    """What counting n-grams achieves, as lines named outside the axes, where no curve is."""
    found = sorted({(one["loss"], GRAMS[one["order"]]) for story in stories for one in story.baselines})
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


def _line(key: str, label: str) -> Callable[[Axes, RunStory, str], None]:
    def plot(axes: Axes, story: RunStory, colour: str) -> None:
        axes.plot(*_columns(story.train, key), color=colour, linewidth=1, label=story.name)
        axes.set_ylabel(label, fontsize=8)

    return plot


def _columns(records: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    kept = [(record["tokens"], record[key]) for record in records if record.get(key) is not None]
    return [tokens for tokens, _ in kept], [value for _, value in kept]
