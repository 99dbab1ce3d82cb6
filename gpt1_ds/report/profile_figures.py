"""The figures of a profile: one step as every rank spent it, all steps, all ranks, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.units import byte_size
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
        drawn["ranks"] = _ranks(summary, ranks)
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
    figure, axes = _canvas(1.0 + 0.34 * len(ranks))
    zero = min(rank["timeline"]["spans"][0][1] for rank in ranks)
    seen: set[str] = set()
    for row, rank in enumerate(ranks):
        for name, begin, end in rank["timeline"]["spans"]:
            axes.barh(row, 1e3 * (end - begin), left=1e3 * (begin - zero), color=_colour(name), height=0.8, lw=0)
            seen.add(name)
    _label_rows(axes, ranks, summary)
    axes.set_xlabel("milliseconds since the step began")
    _legend(figure, [name for name in summary["phases"] if name in seen])
    return figure


def _steps(summary: dict[str, Any]) -> Any:
    figure, axes = _canvas(2.6)
    ranks, steps = summary["ranks"], summary["steps"]
    bottom = [0.0] * len(steps)
    for name in summary["phases"]:
        heights = [
            1e3 * sum(rank["steps"][number]["phases"].get(name, 0.0) for rank in ranks) / len(ranks)
            for number in range(len(steps))
        ]
        axes.bar(range(len(steps)), heights, bottom=bottom, color=_colour(name), width=0.8, lw=0)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    labelled = range(0, len(steps), max(1, len(steps) // 12))
    axes.set_xticks([*labelled], [str(steps[number]) for number in labelled])
    axes.set_xlim(-0.7, max(len(steps), 8) - 0.3)  # a bar is no wall
    axes.set_xlabel("step")
    axes.set_ylabel("milliseconds")
    _legend(figure, list(summary["phases"]))
    return figure


def _ranks(summary: dict[str, Any], ranks: Sequence[Rank]) -> Any:
    figure, axes = _canvas(1.0 + 0.34 * len(ranks))
    for row, rank in enumerate(ranks):
        left = 0.0
        for name in summary["phases"]:
            seconds = sum(step["phases"].get(name, 0.0) for step in rank["steps"]) / len(rank["steps"])
            axes.barh(row, 1e3 * seconds, left=left, color=_colour(name), height=0.8, lw=0)
            left += 1e3 * seconds
    _label_rows(axes, ranks, summary)
    axes.set_xlabel("milliseconds per step")
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
    for begin in _begins(ranks[0]):
        axes.axvline(begin - zero, color="0.6", linestyle=":", lw=0.8, zorder=0)
    axes.set_xlabel("seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_size(value)))
    axes.grid(axis="y", alpha=0.25)
    if len(ranks) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=4)
    return figure


def _begins(rank: Rank) -> list[float]:
    """When each of a rank's steps began."""
    return [step["begin"] for step in rank["steps"]]


def _canvas(height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained")
    return figure, figure.subplots()


def _label_rows(axes: Axes, ranks: Sequence[Rank], summary: dict[str, Any]) -> None:
    axes.set_yticks(range(len(ranks)), [name_of(rank, summary) for rank in ranks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_colour(name), label=name, lw=0) for name in names]
    figure.legend(
        handles=patches,
        loc="outside upper left",
        ncols=12,
        frameon=False,
        fontsize=8,
        handlelength=0.9,
        columnspacing=1.0,
    )


def _colour(name: str) -> str:
    return COLOURS.get(name, OTHER)
