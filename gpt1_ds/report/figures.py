"""How all figures look, and how they become files and elements of pages."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.text import count


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
    """Returns an empty figure, in inches, whose parts do not cover one another. Raises UserError as `set_up` does."""
    set_up()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


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


def as_svg(figure: Any) -> str:
    """Returns the figure as an <svg> element to put into a page."""
    return _element(_svg(figure))


def save(figure: Any, stem: Path) -> str:
    """Writes `stem`.png and `stem`.svg; the latter's <svg> element, since drawing takes long."""
    text = _svg(figure)
    save_png(figure, stem.with_suffix(".png"))
    write_atomic(stem.with_suffix(".svg"), text)
    return _element(text)


def save_png(figure: Any, path: Path) -> None:
    """Writes it whole, or not at all."""
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=130, bbox_inches="tight")
    write_atomic(path, pixels.getvalue())


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def _element(text: str) -> str:
    return text[text.index("<svg") :]
