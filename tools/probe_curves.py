"""Zero-shot scores over the tokens of pre-training, beside their controls and chance: a table and a figure.

    python tools/probe_curves.py RUN... --out FOLDER

Each RUN was scored by `gpt1-ds evaluate -c evaluate/claims --every`. FOLDER gets probes.csv and probes.png.
Runs named seed-N are seeds of the model that their folder is named after: they share a colour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import UserError
from gpt1_ds.report import runs
from gpt1_ds.report.runs import RunStory
from gpt1_ds.scaling.tables import write_table

COLUMNS = ("model", "run", "probe", "metric", "step", "tokens", "score", "low", "high", "control", "chance", "examples")
LOSS = "held-out loss, nats per token"
PANELS = {  # probe -> what is drawn of it, its keys in eval.json begin with
    "blimp": ("BLiMP, mean of 12 phenomena", ""),
    "cola": ("CoLA, area under the ROC curve", "auc"),
    "next_sentence": ("next sentence of the same book", ""),
}


def model_of(story: RunStory) -> str:
    """The folder of seeds, else the run's own name."""
    return story.folder.parent.name if story.folder.name.startswith("seed-") else story.folder.name


def table(stories: Sequence[RunStory]) -> list[dict[str, Any]]:
    """A row for each run, probe and checkpoint."""
    rows: list[dict[str, Any]] = []
    for story in stories:
        tokens = story.config.train.global_batch * story.config.model.context  # of a step
        named = {"model": model_of(story), "run": story.name}
        for one in story.evaluations:
            place = {"step": one["step"], "tokens": one["step"] * tokens}
            rows.append({**named, "probe": "held_out", "metric": "loss", **place, "score": one["loss"]})
        for probe, (_, prefix) in PANELS.items():
            metric = prefix or "accuracy"
            keys = {key: f"{prefix}_{key}" if prefix else key for key in ("low", "high", "control", "chance")}
            for one in story.probes.get(probe, []):
                values = {name: one.get(key) for name, key in keys.items()}
                place = {"step": one["step"], "tokens": one["step"] * tokens}
                found = {"score": one[metric], **values, "examples": one["examples"]}
                rows.append({**named, "probe": probe, "metric": metric, **place, **found})
    return rows


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out loss and each probe: models with their intervals, controls dashed, chance dotted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.4))
    models = list(dict.fromkeys(row["model"] for row in rows))
    for axes, probe in zip(figure.subplots(2, 2).flat, ("held_out", *PANELS), strict=True):
        here = [row for row in rows if row["probe"] == probe]
        for run in dict.fromkeys((row["model"], row["run"]) for row in here):
            _curves(
                axes, [row for row in here if (row["model"], row["run"]) == run], f"C{models.index(run[0])}", run[0]
            )
        axes.set_title(PANELS[probe][0] if probe in PANELS else LOSS, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlabel("training tokens", fontsize=8)
        axes.grid(alpha=0.25)
        shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one of several seeds
        axes.legend(shown.values(), shown.keys(), frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _curves(axes: Any, rows: Sequence[dict[str, Any]], colour: str, model: str) -> None:
    tokens = [row["tokens"] for row in rows]
    probed = rows[0]["probe"] in PANELS
    scale = 100 if probed else 1
    axes.plot(tokens, [scale * row["score"] for row in rows], "o-", color=colour, ms=3, label=model)
    if probed:
        low, high = ([100 * row[key] for row in rows] for key in ("low", "high"))
        axes.fill_between(tokens, low, high, color=colour, alpha=0.15, lw=0)
        controls = [100 * row["control"] for row in rows]
        axes.plot(tokens, controls, "--", color=colour, lw=1, label=f"{model}, control")
        axes.axhline(100 * rows[0]["chance"], color="0.4", ls=":", lw=1, label="chance")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    stories = [runs.read(folder) for folder in words.runs]
    rows = table(stories)
    if not any(row["probe"] in PANELS for row in rows):
        raise UserError(f"{words.runs[0]}: no zero-shot score; run `gpt1-ds evaluate --every` on it first")
    words.out.mkdir(parents=True, exist_ok=True)
    write_table(words.out / "probes.csv", COLUMNS, rows)
    draw(rows, words.out / "probes.png")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"probe_curves: {error}")
