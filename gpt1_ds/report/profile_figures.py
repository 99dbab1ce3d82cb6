"""The figures of a profile: one step as every rank spent it, all steps, all ranks, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.text import byte_size
from gpt1_ds.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    **{"data": "#b8860b", "forward": "#4c78a8", "loss": "#9ecae9", "backward": "#f58518", "send": "#c9c9c9"},
    **{"receive": "#e6e6e6", "reduce": "#b279a2", "optimizer": "#54a24b", "agreement": "#9d9d9d", "log": "#6b6b6b"},
    **{"evaluation": "#72b7b2", "save": "#e45756"},
}
OTHER = "#222222"
RANKS_SHOWN = 16
CAPTIONS = {
    "timeline": "One step (step {step}) as {ranks} spent it{waits}.",
    "steps": "Time by phase of each profiled step, mean of all ranks.",
    "ranks": "Time by phase of {ranks}, mean of all steps. A rank with more work than others makes them wait.",
    "memory": "Memory in use as each phase begins ({what}), {ranks}. Dotted: a step begins.",
}
CPU_MEMORY = "resident, of the whole process: what the profiler keeps of the operators counts, too, and grows"

Rank = dict[str, Any]


def draw(summary: dict[str, Any]) -> list[tuple[str, Any]]:
    """(caption, matplotlib figure) of each. Raises UserError where matplotlib is not installed."""
    figures.set_up()
    ranks = shown(summary["ranks"])
    few = len(ranks) < len(summary["ranks"])
    words = {
        "step": ranks[0]["timeline"]["step"],
        "ranks": f"{len(ranks)} of {len(summary['ranks'])} ranks" if few else "every rank" if ranks[1:] else "the rank",
        "waits": "; light grey is waiting for another one" if ranks[1:] else "",
        "what": CPU_MEMORY if summary["device"] == "cpu" else "tensors on the device",
    }
    drawn = {"timeline": _timeline(summary, ranks), "steps": _steps(summary)}
    if len(ranks) > 1:
        drawn["ranks"] = _all_ranks(summary, ranks)
    drawn["memory"] = _memory(ranks)
    return [(CAPTIONS[name].format(**words), figure) for name, figure in drawn.items()]


def shown(ranks: Sequence[Rank]) -> list[Rank]:
    """All ranks, or of very many some at equal distances."""
    count = min(len(ranks), RANKS_SHOWN)
    return [ranks[number * len(ranks) // count] for number in range(count)]


def name_of(rank: Rank, summary: dict[str, Any]) -> str:
    stage = f", stage {rank['stage']}" if summary["layout"]["pipeline"] > 1 else ""
    return f"rank {rank['rank']}{stage}"


def _timeline(summary: dict[str, Any], ranks: Sequence[Rank]) -> Any:
    zero = min(rank["timeline"]["spans"][0][1] for rank in ranks)
    rows = [[(name, begin - zero, end - begin) for name, begin, end in rank["timeline"]["spans"]] for rank in ranks]
    return _bars(summary, ranks, rows, "milliseconds since the step began")


def _all_ranks(summary: dict[str, Any], ranks: Sequence[Rank]) -> Any:
    rows = []
    for rank in ranks:
        means = [fmean(step["phases"].get(name, 0.0) for step in rank["steps"]) for name in summary["phases"]]
        rows.append(list(zip(summary["phases"], accumulate(means, initial=0.0), means, strict=False)))
    return _bars(summary, ranks, rows, "milliseconds per step")


def _bars(
    summary: dict[str, Any], ranks: Sequence[Rank], rows: Sequence[Sequence[tuple[str, float, float]]], label: str
) -> Any:
    """A row per rank: (phase, where its bar begins, how long it is) each, in seconds."""
    figure, axes = _canvas(1.0 + 0.34 * len(ranks))
    for row, bars in enumerate(rows):
        for name, begin, seconds in bars:
            axes.barh(row, 1e3 * seconds, left=1e3 * begin, color=COLOURS.get(name, OTHER), height=0.8, lw=0)
    axes.set_yticks(range(len(ranks)), [name_of(rank, summary) for rank in ranks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    seen = {name for bars in rows for name, _, _ in bars}
    _legend(figure, [name for name in summary["phases"] if name in seen])
    return figure


def _steps(summary: dict[str, Any]) -> Any:
    figure, axes = _canvas(2.6)
    ranks, steps = summary["ranks"], summary["steps"]
    bottom = np.zeros(len(steps))
    for name in summary["phases"]:
        heights = np.mean([[1e3 * step["phases"].get(name, 0.0) for step in rank["steps"]] for rank in ranks], axis=0)
        axes.bar(range(len(steps)), heights, bottom=bottom, color=COLOURS.get(name, OTHER), width=0.8, lw=0)
        bottom += heights
    labelled = range(0, len(steps), max(1, len(steps) // 12))
    axes.set_xticks([*labelled], [str(steps[number]) for number in labelled])
    axes.set_xlim(-0.7, max(len(steps), 8) - 0.3)  # a bar is no wall
    axes.set_xlabel("step")
    axes.set_ylabel("milliseconds")
    _legend(figure, list(summary["phases"]))
    return figure


def _memory(ranks: Sequence[Rank]) -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, axes = _canvas(2.6)
    zero = min(rank["memory"][0][0] for rank in ranks)
    for number, rank in enumerate(ranks):
        moments = [moment - zero for moment, _ in rank["memory"]]
        held = [held for _, held in rank["memory"]]
        axes.step(moments, held, where="post", lw=1, color=f"C{number % 10}", label=f"rank {rank['rank']}")
    for step in ranks[0]["steps"]:
        axes.axvline(step["begin"] - zero, color="0.6", linestyle=":", lw=0.8, zorder=0)
    axes.set_xlabel("seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_size(value)))
    axes.grid(axis="y", alpha=0.25)
    if len(ranks) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=4)
    return figure


def _canvas(height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS.get(name, OTHER), label=name, lw=0) for name in names]
    style = {"frameon": False, "fontsize": 8, "handlelength": 0.9, "columnspacing": 1.0}
    figure.legend(handles=patches, loc="outside upper left", ncols=12, **style)
