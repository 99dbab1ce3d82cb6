"""How the zero-shot probes of a run grow with its checkpoints, as in Figure 2 (right) of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpt1_ds.config.probes import SCALES
from gpt1_ds.report.runs import RunStory

_SOURCES = {scale.source: [n for n, s in SCALES.items() if s.source == scale.source] for scale in SCALES.values()}
CAPTION = (
    "Zero-shot probes of the checkpoints: (score - chance) / (best - chance), so 0 is guessing. The score of cola is "
    "Matthews' correlation, of the others accuracy. Best is "
    + "; ".join(
        f"for {', '.join(f'{name} {SCALES[name].best:g}' for name in names)} ({source})"
        for source, names in _SOURCES.items()
    )
    + "."
)
LINES = ("-", "--", ":", "-.")  # one kind per run


def normalised(name: str, metrics: dict[str, Any]) -> float:
    """A probe's score as figures show it: 0 is chance, 1 the best of its scale."""
    scale = SCALES[name]
    return float((metrics[scale.metric] - metrics["chance"]) / (scale.best - metrics["chance"]))


def colour(name: str) -> int:
    """The same number for a probe in every figure."""
    return list(SCALES).index(name)


def evolution(stories: Sequence[RunStory]) -> Any:
    """A matplotlib figure: a colour per probe, a kind of line per run, steps on a log scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0))
    axes = figure.subplots()
    for kind, story in zip(LINES * len(stories), stories, strict=False):
        for name, scores in story.probes.items():
            label = f"{story.name}: {name}" if len(stories) > 1 else name
            axes.plot(
                [score["step"] for score in scores],
                [normalised(name, score) for score in scores],
                color=f"C{colour(name)}",
                linestyle=kind,
                marker="o",
                markersize=3,
                label=label,
            )
    axes.axhline(0, color="0.5", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("training steps")
    axes.set_ylabel("score: 0 is chance, 1 the best")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def summary(story: RunStory) -> list[tuple[str, str]]:
    """(what, value) rows: the last score of each probe."""
    rows = []
    for name, scores in story.probes.items():
        last, metric = scores[-1], SCALES[name].metric
        text = f"{metric} {last[metric]:.3f} of {last['examples']} questions, chance {last['chance']:.3f}"
        rows.append((f"zero-shot {name}", f"{text}, after {last['step']:,} steps"))
    return rows
