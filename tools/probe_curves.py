"""Zero-shot scores over the tokens of pre-training, beside their controls and chance: a table and a figure.

    python tools/probe_curves.py RUN... --out FOLDER

Each RUN was scored by `gpt1-ds evaluate -c evaluate/claims --every`. FOLDER gets probes.csv, probes.png and ends.csv:
the means over seeds at the first and the last checkpoint, and the differences of models.
Runs named seed-N are seeds of the model that their folder is named after: they share a colour. Where each run was
scored at one checkpoint, without --every, there are no curves, and a line of the figure is a model.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import UserError
from gpt1_ds.config.task import SCALES
from gpt1_ds.report import runs
from gpt1_ds.report.runs import RunStory
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tasks.comparison import half_over_seeds
from tools.mistakes import told

ABOVE = ("above_control", "above_control_low", "above_control_high")
BOUNDS = ("low", "high", "control", "control_low", "control_high", *ABOVE, "chance")
COLUMNS = ("model", "run", "probe", "metric", "step", "tokens", "score", *BOUNDS, "examples")
ENDS = ("model", "probe", "seeds", "tokens", "first", "first_control", "last", "low", "high", "control", *ABOVE)
CONTROLS = ("--", ":", "-.")  # of the first model, the second, ...
LOSS = "held-out loss, nats per token"
PANELS = {  # probe -> what is drawn of it, its keys in eval.json begin with
    "blimp": ("BLiMP, mean of 12 phenomena", ""),
    "cola": ("CoLA, area under the ROC curve", "auc"),
    "next_sentence": ("next sentence of the same book", ""),
    "repeat": ("the second copy of a passage, log-probability of a token", ""),
}
IN_NATS = ("held_out", "repeat")  # all others x 100


def model_of(story: RunStory) -> str:
    """The folder of seeds, else the run's own name."""
    return story.folder.parent.name if story.folder.name.startswith("seed-") else story.folder.name


def table(stories: Sequence[RunStory]) -> list[dict[str, Any]]:
    """A row for each run, probe and checkpoint."""
    rows: list[dict[str, Any]] = []
    for story in stories:
        tokens = story.config.train.global_batch * story.config.row.fed  # of a step
        named = {"model": model_of(story), "run": story.name}
        for one in story.evaluations:
            place = {"step": one["step"], "tokens": one["step"] * tokens}
            rows.append({**named, "probe": "held_out", "metric": "loss", **place, "score": one["loss"]})
        for probe, (_, prefix) in PANELS.items():
            metric = prefix or SCALES[probe].metric
            keys = {key: f"{prefix}_{key}" if prefix else key for key in BOUNDS}  # cola has nothing above its control
            for one in story.probes.get(probe, []):
                values = {name: one.get(key) for name, key in keys.items()}
                place = {"step": one["step"], "tokens": one["step"] * tokens}
                found = {"score": one[metric], **values, "examples": one["examples"]}
                rows.append({**named, "probe": probe, "metric": metric, **place, **found})
    return rows


def draw_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out loss and each probe: models in colours, with intervals; controls grey and broken; chance a line."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    probes = [probe for probe in ("held_out", *PANELS) if any(row["probe"] == probe for row in rows)]
    lines = math.ceil(len(probes) / 2)
    figure = Figure(figsize=(9, 0.6 + 3.1 * lines), layout="constrained")
    for axes, probe in itertools.zip_longest(figure.subplots(lines, 2, squeeze=False).flat, probes):
        if probe is None:
            axes.set_axis_off()
            continue
        of_probe = [row for row in rows if row["probe"] == probe]
        for number, model in enumerate(models):
            if here := [row for row in of_probe if row["model"] == model]:
                _curves(axes, here, number)
        if probe in PANELS:
            axes.axhline(_scale(probe) * of_probe[0]["chance"], color="C3", lw=1, label="chance")
        axes.set_title(PANELS[probe][0] if probe in PANELS else LOSS, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlabel("training tokens", fontsize=8)
        axes.grid(alpha=0.25)
    _save(figure, path)


def draw_ends(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Each probe's scores of models that have one checkpoint each, with intervals; controls grey; chance a line. Losses
    are of other tokens in every family, and not drawn.
    """
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    probes = [probe for probe in PANELS if any(row["probe"] == probe for row in rows)]
    figure = Figure(figsize=(2 + 3.2 * len(probes), 1.1 + 0.3 * len(models)), layout="constrained")
    for axes, probe in zip(figure.subplots(1, len(probes), sharey=True, squeeze=False).flat, probes, strict=True):
        scale = _scale(probe)
        for line, model in enumerate(models):
            for one in summary([row for row in rows if (row["model"], row["probe"]) == (model, probe)]):
                for key, before, color in (("control", "control_", "0.55"), ("score", "", "C0")):
                    bounds = [scale * (one.get(f"{before}{end}") or one[key]) for end in ("low", "high")]
                    axes.plot(bounds, [line, line], color=color)
                    axes.plot([scale * one[key]], [line], "o", color=color, label=key)
        axes.axvline(
            scale * next(row["chance"] for row in rows if row["probe"] == probe), color="C3", lw=1, label="chance"
        )
        axes.set_title(PANELS[probe][0], fontsize=9)
        axes.grid(alpha=0.25)
        axes.set_yticks(range(len(models)), models)
        axes.set_ylim(len(models) - 0.5, -0.5)  # the first model on top
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Writes the figure with one legend for all panels."""
    shown = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown), fontsize=8)
    figure.savefig(path, dpi=120)


def _scale(probe: str) -> int:
    return 1 if probe in IN_NATS else 100


def _curves(axes: Any, rows: Sequence[dict[str, Any]], number: int) -> None:
    """Draws the curve of one model and probe: the mean over its seeds and, where there are several, each seed as a thin
    line.
    """
    style, control = {"color": f"C{number}"}, {"color": "0.45", "ls": CONTROLS[number % len(CONTROLS)], "lw": 1.2}
    scale = _scale(rows[0]["probe"])
    steps = summary(rows)
    tokens = [one["tokens"] for one in steps]
    axes.plot(tokens, [scale * one["score"] for one in steps], "o-", ms=3, label=rows[0]["model"], **style)
    if rows[0]["probe"] in PANELS:
        for of, shade in (("", style), ("control_", {"color": "0.45"})):
            if all(one.get(f"{of}low") is not None for one in steps):
                bounds = ([scale * one[f"{of}{end}"] for one in steps] for end in ("low", "high"))
                axes.fill_between(tokens, *bounds, alpha=0.15, lw=0, **shade)
        axes.plot(tokens, [scale * one["control"] for one in steps], label=f"control of {rows[0]['model']}", **control)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    for run in runs if len(runs) > 1 else ():
        of_run = [row for row in rows if row["run"] == run]
        axes.plot(
            [row["tokens"] for row in of_run], [scale * row["score"] for row in of_run], lw=0.6, alpha=0.6, **style
        )


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for one model and probe and each step that all of its seeds have, means of scores and controls, and 95 %
    intervals that join examples (the same ones for all seeds) and seeds, as gpt1_ds/tasks/comparison.py does.
    """
    runs = {row["run"] for row in rows}
    found = []
    for step in dict.fromkeys(row["step"] for row in rows):
        here = [row for row in rows if row["step"] == step]
        if len(here) < len(runs):
            continue
        one = dict(here[0])
        for key, low, high in (("score", "low", "high"), ("control", "control_low", "control_high"), ABOVE):
            one |= _joined(here, key, low, high) if one.get(key) is not None else {}
        found.append(one)
    return found


def _joined(rows: Sequence[dict[str, Any]], key: str, low: str, high: str) -> dict[str, float]:
    """The mean over seeds, with its interval where rows have one: older programs wrote none for controls."""
    mean = fmean(row[key] for row in rows)
    if any(row.get(low) is None for row in rows):
        return {key: mean}
    by_seeds = half_over_seeds([row[key] for row in rows])
    below, above = (abs(fmean(row[end] for row in rows) - mean) for end in (low, high))
    return {key: mean, low: mean - math.hypot(below, by_seeds), high: mean + math.hypot(above, by_seeds)}


def ends(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each probe and model, in points (IN_NATS: nats), and one for the difference of each two models. Its
    interval takes their scores as if they were of other examples: they are of the same, so that it is rather too wide.
    """
    found: list[dict[str, Any]] = []
    for probe in PANELS:
        scale, named = _scale(probe), dict[str, dict[str, Any]]()
        for model in dict.fromkeys(row["model"] for row in rows if row["probe"] == probe):
            here = [row for row in rows if (row["probe"], row["model"]) == (probe, model)]
            steps = summary(here)
            first, last = steps[0], steps[-1]
            named[model] = {
                **{
                    "model": model,
                    "probe": probe,
                    "seeds": len({row["run"] for row in here}),
                    "tokens": last["tokens"],
                },
                **{"first": scale * first["score"], "first_control": scale * first["control"]},
                "last": scale * last["score"],
                **{key: scale * last[key] for key in ("low", "high", "control", *ABOVE) if last.get(key) is not None},
            }
        found += named.values()
        for one, other in itertools.combinations(named.values(), 2):
            if one["tokens"] != other["tokens"]:  # one is not evaluated to its end
                continue
            halves = [max(row["high"] - row["last"], row["last"] - row["low"]) for row in (one, other)]
            difference, half = one["last"] - other["last"], math.hypot(*halves)
            pair = {"model": f"{one['model']} minus {other['model']}", "probe": probe, "tokens": one["tokens"]}
            found.append({**pair, "last": difference, "low": difference - half, "high": difference + half})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stories = [runs.read(folder) for folder in arguments.runs]
    rows = table(stories)
    if not any(row["probe"] in PANELS for row in rows):
        raise UserError(f"{arguments.runs[0]}: no zero-shot score; run `gpt1-ds evaluate --every` on it first")
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_table(arguments.out / "probes.csv", COLUMNS, rows)
    write_table(arguments.out / "ends.csv", ENDS, ends(rows))
    grown = any(len(scores) > 1 for story in stories for scores in story.probes.values())
    (draw_curves if grown else draw_ends)(rows, arguments.out / "probes.png")


if __name__ == "__main__":
    with told():
        main()
