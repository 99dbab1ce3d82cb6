"""Published scaling fits come out of `scaling fit --from-csv` as published."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.cli import main
from tests.helpers.laws import write_csv
from tests.helpers.shared_data import shared_data

MUENNIGHOFF = {"A": exp(6.255414), "B": exp(7.3049974), "E": exp(0.6254804), "alpha": 0.3526596, "beta": 0.3526596}


def read(name: str) -> list[dict[str, str]]:
    with open(shared_data("scaling") / name, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(rows: list[dict[str, Any]], *words: str) -> dict[str, Any]:
        file = write_csv(tmp_path / "points.csv", rows)
        assert main(["scaling", "fit", "--from-csv", str(file), "--out", str(tmp_path), *words]) == 0
        return json.loads((tmp_path / "fit.json").read_text())  # type: ignore[no-any-return]

    return run


def test_gadre_redpajama(fit: Callable[..., dict[str, Any]]) -> None:
    small = [("d=96_l=8_h=4", 1), ("d=512_l=8_h=4", 1), ("d=576_l=24_h=8", 1), ("d=1024_l=24_h=8", 1)]
    large = [("open_lm_1b", 32.0), ("open_lm_7b", 1.0)]
    rows = []
    for row in read("gadre_overtraining_models.csv"):
        key = (row["model"], float(row["cc_mult"]))
        if row["dataset"] == "rpj" and key in [*small, ("d=96_l=8_h=4", 16), *large]:
            d = 20 * key[1] * float(row["N"])
            loss = row["loss_c4_val"]
            rows.append({"cell": row["model"] + row["cc_mult"], "n": row["N"], "d": d, "loss": loss})
            rows[-1]["held_out"] = int(key in large)
    record = fit(rows, "--form", "gadre")
    errors = [round(row["error_percent"], 4) for row in record["held_out"]]
    assert errors == [0.7103, 0.7320]
    theirs = record["gadre"]
    assert [theirs["a"], theirs["c"]] == pytest.approx([166.2, 366.7], rel=1e-3)
    assert theirs["b"] == pytest.approx(-0.2729, abs=5e-5)
    assert theirs["E"] == pytest.approx(1.8366, abs=5e-5)


def test_olmo_ladder_and_its_implausible_floor(fit: Callable[..., dict[str, Any]]) -> None:
    rows: list[dict[str, Any]] = [
        {"cell": row["file"], "n": row["N"], "d": row["tokens"], "loss": row["c4_last5_mean"], "held_out": 0}
        for row in read("olmo_ladder_final_points.csv")
        if row["mode"] == "train"
    ]
    rows.append({"cell": "13B-5T", "n": 13202396160, "d": 5000088518656, "loss": 2.437876, "held_out": 1})
    record = fit(rows)
    assert record["points"] == 16
    assert round(record["held_out"][0]["error_percent"], 2) == -3.83
    assert record["E"] == pytest.approx(0.934, abs=1e-3)
    assert record["starts"]["agreeing"] == 5
    warnings = "\n".join(record["warnings"])
    assert "implausible E = 0.934" in warnings
    assert "when one run" in warnings
    assert "13B-5T: held-out error -3.83 % is beyond" in warnings
    assert "13B-5T: N = 13.2B is 10.3x outside" in warnings


def test_muennighoffs_objective_and_its_flatness(
    fit: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"cell": row["name"], "n": row["N"], "d": row["D"], "u": row["U"], "loss": row["val_loss"]}
        for row in read("muennighoff_data_constrained_c4.csv")
        if row["in_published_fit"] == "True"
    ]
    given = ",".join(f"{name}={value!r}" for name, value in MUENNIGHOFF.items())
    published = f"{given},R_D=15.387756,R_N=5.309743"
    record = fit(rows, "--form", "repeated", "--at", published)
    assert record["points"] == 182
    assert record["objective"] == pytest.approx(0.0158259, abs=1e-7)
    assert record["evaluated_only"]
    low, high = record["profile"]["R_D"]
    assert low < 15
    assert high > 200
    assert "R_D = 15.39 is flat: anywhere from" in capsys.readouterr().out

    fitted = fit(rows, "--form", "repeated", "--at", given, "--draws", "100")
    assert fitted["objective"] <= 0.0158048
    assert fitted["R_D"] == pytest.approx(95, rel=0.05)
    assert fitted["R_N"] == pytest.approx(1.7, rel=0.05)
    assert fitted["intervals"]["R_D"][1] / fitted["intervals"]["R_D"][0] > 10
    assert np.isfinite(fitted["bootstrap"]["samples"]["R_D"]).all()
