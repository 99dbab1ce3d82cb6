"""The figure of the claims: probes over tokens, with control and chance."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.report.runs import read
from tests.unit.report.test_page import run as plain_run
from tests.unit.report.test_zero_shot_chart import add, entry
from tools.probe_curves import draw, table

run = plain_run
BOUNDS = {"low": 0.5, "high": 0.7, "control": 0.48}
AUC = {"auc": 0.57, "auc_low": 0.53, "auc_high": 0.61, "auc_control": 0.44, "auc_chance": 0.5}


def test_each_checkpoint_has_a_row_with_its_control(run: Path, tmp_path: Path) -> None:
    add(run, entry("blimp", 10, accuracy=0.6, **BOUNDS), entry("cola", 10, matthews=0.1, **BOUNDS, **AUC))
    story = read(run)
    rows = [row for row in table([story]) if row["probe"] != "held_out"]
    step = story.config.train.global_batch * story.config.model.context
    assert [(row["probe"], row["metric"], row["score"], row["tokens"]) for row in rows] == [
        ("blimp", "accuracy", 0.6, 10 * step),
        ("cola", "auc", 0.57, 10 * step),
    ]
    assert [(row["low"], row["high"], row["control"], row["chance"]) for row in rows] == [
        (0.5, 0.7, 0.48, 0.5),
        (0.53, 0.61, 0.44, 0.5),
    ]
    draw(table([story]), tmp_path / "probes.png")
    assert (tmp_path / "probes.png").stat().st_size > 5000
