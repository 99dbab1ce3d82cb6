"""The figure of the claims: probes over tokens, with control and chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.report.runs import read
from tests.unit.report.test_page import run as plain_run
from tests.unit.report.test_zero_shot_chart import add, entry
from tools.probe_curves import draw_curves, draw_ends, ends, summary, table

run = plain_run
BOUNDS = {"low": 0.5, "high": 0.7, "control": 0.48, "control_low": 0.47, "control_high": 0.49}
AUC = {"auc": 0.57, "auc_low": 0.53, "auc_high": 0.61, "auc_control": 0.44, "auc_chance": 0.5}
AUC |= {"auc_control_low": 0.4, "auc_control_high": 0.48}


def test_each_checkpoint_has_a_row_with_its_control(run: Path, tmp_path: Path) -> None:
    add(run, entry("blimp", 10, accuracy=0.6, **BOUNDS), entry("cola", 10, matthews=0.1, **BOUNDS, **AUC))
    story = read(run)
    rows = [row for row in table([story]) if row["probe"] != "held_out"]
    step = story.config.train.global_batch * story.config.model.context
    assert [(row["probe"], row["metric"], row["score"], row["tokens"]) for row in rows] == [
        ("blimp", "accuracy", 0.6, 10 * step),
        ("cola", "auc", 0.57, 10 * step),
    ]
    keys = ("low", "high", "control", "control_low", "control_high", "chance")
    assert [[row[key] for key in keys] for row in rows] == [
        [0.5, 0.7, 0.48, 0.47, 0.49, 0.5],
        [0.53, 0.61, 0.44, 0.4, 0.48, 0.5],
    ]
    for draw in (draw_curves, draw_ends):
        draw(table([story]), tmp_path / "probes.png")
        assert (tmp_path / "probes.png").stat().st_size > 5000


def test_seeds_are_one_curve_with_an_interval_over_seeds_and_examples() -> None:
    row = {"model": "GPT-1", "probe": "blimp", "step": 10, "tokens": 100, "low": 0.5, "high": 0.7, "control": 0.5}
    row |= {"control_low": 0.46, "control_high": 0.54}
    rows = [{**row, "run": f"seed-{number}", "score": score} for number, score in enumerate((0.59, 0.60, 0.61))]
    late = {**rows[0], "step": 20}
    (one,) = summary([*rows, late])
    assert one["score"] == pytest.approx(0.6)
    half = ((0.1) ** 2 + (4.3027 * 0.01 / 3**0.5) ** 2) ** 0.5
    assert (one["low"], one["high"]) == pytest.approx((0.6 - half, 0.6 + half), abs=1e-5)
    control = (one["control"], one["control_low"], one["control_high"])
    assert control == pytest.approx((0.5, 0.46, 0.54)), "its examples alone: all seeds say the same"
    (alone,) = summary(rows[:1])
    assert (alone["low"], alone["high"]) == pytest.approx((0.5, 0.7)), "of one seed the interval of its examples"


def test_the_ends_of_curves_and_how_models_differ() -> None:
    row = {"probe": "blimp", "low": 0.5, "high": 0.7, "control": 0.48, "run": "seed-1"}
    rows = [
        {**row, "model": model, "step": step, "tokens": 10 * step, "score": score + step / 1000}
        for model, score in (("GPT-1", 0.58), ("LSTM", 0.53))
        for step in (10, 20)
    ]
    gpt1, lstm, difference = ends(rows)
    assert [gpt1[key] for key in ("seeds", "tokens")] == [1, 200]
    assert [gpt1[key] for key in ("first", "last", "low", "high", "control")] == pytest.approx([59, 60, 50, 70, 48])
    assert (lstm["model"], lstm["last"]) == ("LSTM", pytest.approx(55))
    assert difference["model"] == "GPT-1 minus LSTM"
    half = (10**2 + 15**2) ** 0.5
    assert [difference[key] for key in ("last", "low", "high")] == pytest.approx([5, 5 - half, 5 + half])
    assert len(ends(rows[:-1])) == 2, "after another number of tokens they are not compared"
    nats = {"probe": "repeat", "score": -2.5, "low": -2.75, "high": -2.25, "control": -4.0}
    (in_nats,) = ends([{**rows[0], **nats}])
    assert [in_nats[key] for key in ("first", "first_control", "last", "low", "high")] == [-2.5, -4, -2.5, -2.75, -2.25]
