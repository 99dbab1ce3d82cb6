"""A study's folder for people: results.csv, table.md, study.html and figures/, written anew after every cell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import figures, paper
from gpt1_ds.report.study_results import Column, Results, read_study, write_csv
from gpt1_ds.report.study_table import LONG_HEAD, Mean, as_markdown, make_table, mean, progress
from gpt1_ds.report.template import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RELOAD_SECONDS = 60  # of the page while cells are left
CAPTION = (
    "Dev score against the number of blocks taken from the checkpoint; the rest is drawn anew, and everything trained. "
    "Mean and standard error over seeds, each run as a dot. At `none` nothing is taken, at 0 the embeddings only. The "
    "paper's Figure 2 (left; 12 layers), as others read it off: MNLI from about 72 to 82, RACE from about 40 to 60."
)


def write_study(folder: Path) -> None:
    """Raises UserError where matplotlib or jinja2 is missing; results.csv and table.md are written before."""
    results = read_study(folder)
    write_csv(results, folder / "results.csv")
    write_atomic(folder / "table.md", as_markdown(results))
    figure, svg = layer_transfer(results), None
    if figure is not None:
        (folder / "figures").mkdir(exist_ok=True)
        svg = figures.save(figure, folder / "figures" / "layer_transfer")
    shown = {"results": results, "progress": progress(results), "table": make_table(results), "long_head": LONG_HEAD}
    reload = RELOAD_SECONDS if results.done < len(results.cells) else 0
    page = render("study.html", "report", svg=svg, caption=CAPTION, reload=reload, **shown)
    write_atomic(folder / "study.html", page)


def curves(results: Results) -> dict[str, dict[int, list[float]]]:
    """Task -> layers taken -> scores of the finished runs, in points."""
    found: dict[str, dict[int, list[float]]] = {}
    for layers, key in sorted(results.curve, key=lambda point: point[0]):
        if key in results.points:
            found.setdefault(key[0], {}).setdefault(layers, []).append(results.points[key])
    return found


def layer_transfer(results: Results) -> Any | None:
    """Figure 2 (left) of the paper: what each further layer taken from the pre-trained model brings.

    A matplotlib figure with a panel per task, or None while no run of it is done.
    """
    found = curves(results)
    if not found:
        return None
    figures.set_up()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.0 + 3.6 * len(found), 3.2), layout="constrained")
    tasks = {task.name: task for task in results.tasks}
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    wanted = sorted({layers for layers, _ in results.curve})
    for number, (axes, (task, scores)) in enumerate(zip(panels, found.items(), strict=True)):
        _panel(axes, tasks[task], {layers: scores.get(layers, []) for layers in wanted}, f"C{number}")
        axes.set_xticks(wanted, ["none" if layers < 0 else str(layers) for layers in wanted])
        axes.set_xlim(wanted[0] - 0.4, wanted[-1] + 0.4)
    return figure


def _panel(axes: Axes, column: Column, scores: dict[int, list[float]], colour: str) -> None:
    """The line is broken where no run is done yet."""
    missing = Mean(math.nan, None, 0)
    means = [mean(runs) or missing for runs in scores.values()]
    errors = [one.error or 0.0 for one in means]
    axes.errorbar(list(scores), [one.mean for one in means], errors, color=colour, marker="o", ms=4, capsize=2)
    for layers, runs in scores.items():
        axes.plot([layers] * len(runs), runs, ".", color=colour, alpha=0.35, ms=4)
    axes.set_title(column.title, fontsize=10)
    axes.set_xlabel("layers transferred")
    axes.set_ylabel(f"dev {paper.METRICS[column.metric]} x 100")
    axes.grid(alpha=0.25)
