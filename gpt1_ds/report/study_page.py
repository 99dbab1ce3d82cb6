"""A study's folder for people, written anew after every cell: results.csv, comparisons.csv, table.md, study.html and
figures/: its rows beside the controls, and the curve of layers transferred.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.report import figures, paper
from gpt1_ds.report.study_comparisons import (
    AVERAGE,
    HEAD,
    NOT_SUPPORTED,
    SUPPORTED,
    TREND,
    Compared,
    StudyAnswers,
    as_rows,
    comparisons,
    intervals,
    write_comparisons,
)
from gpt1_ds.report.study_results import Column, Results, read_study_results, write_csv
from gpt1_ds.report.study_table import LONG_HEAD, Intervals, Mean, as_markdown, cell_mean, make_table, mean, progress
from gpt1_ds.report.template import render
from gpt1_ds.tasks.dev import HALF

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDEST = 4  # panels beside one another
GREY = "0.4"  # of controls
CAPTIONS = {
    "rows": (
        "Each row of the table: mean over seeds, 95 % interval over seeds and examples (without answers to each "
        "example: standard error over seeds), each run as a dot. Grey are controls: rows that the study names so, and "
        "as hollow squares those without a network, with the interval over examples; the dashed line is the best of "
        "these. What does not exceed it shows no knowledge of language."
    ),
    "compared": (
        "First minus second, paired by seed and example, with the 95 % interval over both; of several tasks their "
        "average. Blue: what was expected beforehand, red: the contrary, grey: undecided at this size, or nothing was "
        "expected."
    ),
    "learning": (
        "Score against the number of training examples: mean over seeds, 95 % interval over seeds and examples. "
        "Grey are controls; broken lines are those without a network, fitted on the same examples."
    ),
    "layer_transfer": (
        "Dev score against the number of blocks taken from the checkpoint; the rest is drawn anew, and everything "
        "trained. Mean and standard error over seeds, each run as a dot. At `none` nothing is taken, at 0 the "
        "embeddings only. The paper's Figure 2 (left; 12 layers), as others read it off: MNLI from about 72 to 82, "
        "RACE from about 40 to 60."
    ),
}


def rows(results: Results, intervals: Intervals) -> Any | None:
    """Every row and control of the table, a panel per task; a matplotlib figure, or None while no run is done."""
    columns = [column for column in results.columns if any(key[0] == column.name for key in results.points)]
    names = [*results.variants, *results.controls]
    if not columns or len(names) < 2:
        return None
    lines = math.ceil(len(columns) / WIDEST)
    beside = math.ceil(len(columns) / lines)
    figure = figures.new_figure(2.0 + 2.6 * beside, lines * (0.8 + 0.27 * len(names)))
    panels = figure.subplots(lines, beside, sharey=True, squeeze=False)
    for axes, column in itertools.zip_longest(panels.flat, columns):
        if column is None:
            axes.set_axis_off()
        else:
            _rows_panel(axes, results, column, intervals)
    panels[0, 0].set_yticks(range(len(names)), names)
    panels[0, 0].set_ylim(len(names) - 0.5, -0.5)  # the first row on top
    _name_the_kinds(figure, results)
    return figure


def _name_the_kinds(figure: Any, results: Results) -> None:
    """A legend of what is drawn in `rows`."""
    from matplotlib.lines import Line2D

    kinds = {"model": Line2D([], [], color="C0", marker="o", ms=4)}
    if results.control_rows:
        kinds["control that is fine-tuned, too"] = Line2D([], [], color=GREY, marker="o", ms=4)
    if results.controls:
        kinds["control without a network"] = Line2D([], [], color=GREY, marker="s", mfc="none", ms=5, linewidth=1)
        kinds["the best of these"] = Line2D([], [], color=GREY, linestyle="--", linewidth=1)
    figure.legend(kinds.values(), kinds.keys(), loc="outside lower center", ncols=2, fontsize=8)


def _rows_panel(axes: Axes, results: Results, column: Column, intervals: Intervals) -> None:
    for height, name in enumerate(results.variants):
        runs = [results.points[key] for seed in results.seeds if (key := (column.name, name, seed)) in results.points]
        if (one := mean(runs)) is not None:
            error = one.error or 0.0
            low, high = intervals.get((column.name, name), (one.mean - error, one.mean + error))
            ends = [[max(0.0, one.mean - low)], [max(0.0, high - one.mean)]]
            colour = GREY if name in results.control_rows else "C0"
            axes.errorbar([one.mean], [height], xerr=ends, color=colour, marker="o", ms=4, capsize=2)
            axes.plot(runs, [height] * len(runs), ".", color=colour, alpha=0.35, ms=4)
    controls = {name: one.mean for name in results.controls if (one := cell_mean(results, column, name)) is not None}
    for height, name in enumerate(results.controls, len(results.variants)):
        if name in controls:
            axes.plot([controls[name]], [height], "s", color=GREY, mfc="none", ms=5)
            low, high = intervals.get((column.name, name), (controls[name], controls[name]))
            axes.plot([low, high], [height, height], color=GREY, linewidth=1)
    if controls:
        axes.axvline(max(controls.values()), color=GREY, linestyle="--", linewidth=1)
    axes.set_title(column.title, fontsize=10)
    split = " and ".join(results.splits[column.name]).replace(HALF, "half of dev")
    axes.set_xlabel(f"{split}: {paper.METRICS[column.metric]} x 100")
    axes.grid(axis="x", alpha=0.25)


def forest(compared: Sequence[Compared]) -> Any | None:
    """A line for each comparison: its average or trend, or where it has none, each of its tasks; None of none."""
    shown: list[Compared] = []
    tasks: Counter[int] = Counter()  # number of a line -> what its average is of
    for one in compared:
        whole = bool(shown) and shown[-1].task in (AVERAGE, TREND) and one.task not in (AVERAGE, TREND)
        if whole and _question(one) == _question(shown[-1]):
            tasks[len(shown) - 1] += 1
        else:
            shown.append(one)
    if not shown:
        return None
    asked = Counter((first, second) for _, first, second in dict.fromkeys(map(_question, shown)))
    labels = [
        f"{one.first} - {one.second}"
        + (f"\n{one.claim}" if asked[one.first, one.second] > 1 else "")
        + f" ({f'mean of {tasks[number]}' if one.task == AVERAGE and tasks[number] else one.task})"
        for number, one in enumerate(shown)
    ]
    lines = sum(1 + label.count("\n") for label in labels)
    figure = figures.new_figure(9.0, 0.9 + 0.15 * (len(labels) + lines))
    axes = figure.subplots()
    colours = {SUPPORTED: "C0", NOT_SUPPORTED: "C3", "undecided, or nothing was expected": "0.45"}
    for verdict, colour in colours.items():
        axes.plot([], [], color=colour, marker="o", ms=4, label=verdict)
    for height, one in enumerate(shown):
        ends = [[one.difference - one.low], [one.high - one.difference]]
        colour = colours.get(one.verdict, "0.45")
        axes.errorbar([one.difference], [height], xerr=ends, color=colour, marker="o", ms=4, capsize=2)
    axes.axvline(0, color="0.4", linewidth=1)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("difference, points")
    axes.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=len(colours), fontsize=8)
    return figure


def _question(one: Compared) -> tuple[str, str, str]:
    return one.claim, one.first, one.second


def learning(results: Results, intervals: Intervals) -> Any | None:
    """A panel for each task that has several numbers of training examples; None of none."""
    families: dict[str, list[Column]] = {}
    for column in sorted((c for c in results.columns if c.examples), key=lambda c: c.examples or 0):
        families.setdefault(column.task, []).append(column)
    panels = {task: columns for task, columns in families.items() if len(columns) > 1}
    if not panels or not results.points:
        return None
    figure = figures.new_figure(1.5 + 3.4 * len(panels), 3.6)
    for axes, (task, columns) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for number, name in enumerate(results.variants):
            colour = GREY if name in results.control_rows else f"C{number}"
            _learning_line(axes, results, columns, intervals, name, {"color": colour})
        looks = itertools.cycle(zip("sv^Dx+", (":", "--", "-.", ":", "--", "-."), strict=True))
        for name, (marker, line) in zip(results.controls, looks, strict=False):
            style = {"color": GREY, "linestyle": line, "marker": marker, "ms": 5, "mfc": "none", "linewidth": 1}
            _learning_line(axes, results, columns, intervals, name, style)
        axes.set_xscale("log")
        axes.set_title(paper.TITLES.get(task, task), fontsize=10)
        axes.set_xlabel("training examples")
        axes.set_ylabel(f"{paper.METRICS[columns[0].metric]} x 100")
        axes.grid(alpha=0.25)
    drawn = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _learning_line(
    axes: Axes, results: Results, columns: Sequence[Column], intervals: Intervals, name: str, style: dict[str, Any]
) -> None:
    means = [(column, one) for column in columns if (one := cell_mean(results, column, name)) is not None]
    if not means:
        return
    counts = [column.examples or 0 for column, _ in means]
    axes.plot(counts, [one.mean for _, one in means], label=name, **{"marker": "o", "ms": 3, **style})
    if name in results.variants:
        ends = [intervals.get((column.name, name), (one.mean, one.mean)) for column, one in means]
        axes.fill_between(
            counts, [low for low, _ in ends], [high for _, high in ends], color=style["color"], alpha=0.15
        )


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
    figure = figures.new_figure(1.0 + 3.6 * len(found), 3.2)
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


RELOAD_SECONDS = 60  # of the page while cells are left


def is_study(folder: Path) -> bool:
    """Whether a fine-tuning study ran there."""
    file = RunDir(folder).study
    return file.is_file() and '"variants"' in file.read_text(encoding="utf-8")


def write_study(folder: Path) -> None:
    """Raises UserError where matplotlib is missing; results.csv and table.md are written before."""
    results = read_study_results(folder)
    write_csv(results, folder / "results.csv")
    answers = StudyAnswers(folder, results)
    ends, compared = intervals(answers), list(comparisons(answers))
    if results.compare:
        write_comparisons(compared, folder / "comparisons.csv")
    table, differences = make_table(results, ends), [HEAD, *as_rows(compared)] if compared else []
    write_atomic(folder / "table.md", as_markdown(results, table, differences))
    drawn = {
        "rows": rows(results, ends),
        "learning": learning(results, ends),
        "compared": forest(compared),
        "layer_transfer": layer_transfer(results),
    }
    (folder / "figures").mkdir(exist_ok=True)
    svg = {name: figures.save(one, folder / "figures" / name) for name, one in drawn.items() if one is not None}
    shown = {"results": results, "progress": progress(results), "table": table, "long_head": LONG_HEAD}
    reload = RELOAD_SECONDS if results.done + len(results.diverged) < len(results.cells) else 0
    page = render("study.html", svg=svg, captions=CAPTIONS, reload=reload, differences=differences, **shown)
    write_atomic(folder / "study.html", page)
