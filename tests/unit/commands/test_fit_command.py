"""`scaling fit` and `scaling predict` as a person calls them, and the files they leave."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.scaling.laws import compute_optimal
from tests.helpers.laws import TRUTH, law, truth_csv


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study folder with a results.csv and its fit."""
    folder = tmp_path_factory.mktemp("study")
    truth_csv(folder, 6, 6, 0.001).rename(folder / "results.csv")
    assert main(["scaling", "fit", str(folder), "--draws", "100"]) == 0
    return folder


def predict(study: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["scaling", "predict", str(study), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_fit_json_says_everything(study: Path) -> None:
    record = json.loads((study / "fit.json").read_text())
    assert record["format"] == 1
    assert (record["form"], record["loss"], record["points"]) == ("chinchilla", "huber", 35)
    for name in ("alpha", "beta", "E"):
        low, high = record["intervals"][name]
        assert low < TRUTH[name] < high
        assert low < record[name] < high
    assert record["a"] + record["b"] == pytest.approx(1)
    assert record["a"] == pytest.approx(record["beta"] / (record["alpha"] + record["beta"]))
    assert record["starts"]["count"] == record["starts"]["agreeing"] == len(record["starts"]["objectives"]) == 5
    samples = record["bootstrap"]["samples"]
    assert set(samples) == {"alpha", "beta", "E", "A", "B"}
    assert {len(draws) for draws in samples.values()} == {100}
    assert record["range"] == {"n": [1e7, 1e9], "d": [1e9, 1e11], "flops": [6e16, pytest.approx(6 * 1e9 * 10**10.6)]}
    assert len(record["data"]["sha256"]) == 64
    assert set(record["versions"]) == {"numpy", "scipy", "gpt1_ds"}
    assert abs(record["held_out"][0]["error_percent"]) < 1


def test_draws_lie_on_one_line_each(study: Path) -> None:
    lines = (study / "fit.json").read_text().splitlines()
    assert len(lines) < 200
    assert sum(line.count(",") > 98 for line in lines) == 5


def test_without_scipy_it_says_what_to_install(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert main(["scaling", "fit", str(study)]) == 2
    assert capsys.readouterr().err == "gpt1-ds: scipy is not installed: pip install 'gpt1-ds[scaling]'\n"


def test_predictions_csv_has_a_row_per_point(study: Path) -> None:
    with open(study / "predictions.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["cell", "n", "d", "u", "held_out", "loss", "predicted", "low", "high", "error_percent"]
    assert [row["held_out"] for row in rows] == ["0"] * 35 + ["1"]
    for row in rows:
        assert float(row["low"]) < float(row["predicted"]) < float(row["high"])


def test_the_same_fit_twice_is_the_same(study: Path, tmp_path: Path) -> None:
    arguments = ["--from-csv", str(study / "results.csv"), "--out", str(tmp_path), "--draws", "100"]
    assert main(["scaling", "fit", *arguments]) == 0
    assert (tmp_path / "fit.json").read_text() == (study / "fit.json").read_text()
    assert main(["scaling", "fit", *arguments, "--seed", "1"]) == 0
    assert (tmp_path / "fit.json").read_text() != (study / "fit.json").read_text()


def test_what_a_person_reads(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scaling", "fit", str(study), "--out", str(tmp_path), "--draws", "50"])
    text = capsys.readouterr().out
    for arguments in ("  alpha ", "N_opt ~ C^a", "5 of 5 starts agree", "no noise floor", "held out row 37: "):
        assert arguments in text
    assert "\n  A " not in text
    assert "\n  B " not in text


def test_loss_of_a_run(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = predict(study, capsys, "--params", "120M", "--tokens", "2.5B")
    assert told["loss"]["value"] == pytest.approx(law(1.2e8, 2.5e9, **TRUTH), rel=2e-3)
    low, high = told["loss"]["interval"]
    assert low < told["loss"]["value"] < high
    assert told["extrapolation"] == {"n": 1, "d": 1, "flops": 1}
    assert told["warnings"] == []


def test_far_from_the_fitted_range(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = predict(study, capsys, "--params", "20B", "--tokens", "200B")
    assert told["extrapolation"]["n"] == pytest.approx(20)
    assert told["extrapolation"]["d"] == pytest.approx(2)
    assert any("N = 20B is 20x outside the fitted range" in line for line in told["warnings"])


def test_compute_optimal(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = predict(study, capsys, "--flops", "1e19")["optimal"]
    n, d = compute_optimal(TRUTH, 1e19)
    assert best["n"]["interval"][0] < n < best["n"]["interval"][1]
    assert best["d"]["interval"][0] < d < best["d"]["interval"][1]
    assert 6 * best["n"]["value"] * best["d"]["value"] == pytest.approx(1e19)
    assert best["rule"] == "C = 6ND"
    left = predict(study, capsys, "--flops", "1.2e19", "--params", "100M")
    assert left["d"] == pytest.approx(2e10)


def test_data_for_a_target(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = float(law(1e8, 2e10, **TRUTH))
    found = predict(study, capsys, "--params", "100M", "--target-loss", str(target))["tokens_for_target"]
    assert found["interval"][0] < 2e10 < found["interval"][1]
    assert found["value"] == pytest.approx(2e10, rel=0.1)
    told = predict(study, capsys, "--params", "100M", "--target-loss", "1.5")
    assert told["tokens_for_target"]["value"] is None
    assert any("out of reach of N = 1e+08" in line for line in told["warnings"])
    assert main(["scaling", "predict", str(study), "--flops", "1e19", "--target-loss", "3"]) == 2
    assert "--target-loss: give --params" in capsys.readouterr().err


def test_a_form_without_tokens_has_no_data_for_a_target(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", "fit", str(study), "--form", "power_n", "--draws", "20", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert predict(tmp_path, capsys, "--params", "100M")["loss"]["value"] > 0
    assert main(["scaling", "predict", str(tmp_path), "--params", "100M", "--target-loss", "3"]) == 2
    assert "--target-loss: form power_n has no axis of tokens" in capsys.readouterr().err


def test_another_epoch_without_a_repetition_term_is_a_bound(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--params", "100M", "--tokens", "8B", "--unique", "2B")
    told = predict(study, capsys, *arguments)
    assert told["epoch"]["epochs"] == 4
    assert told["epoch"]["gain"] is None
    expected = law(1e8, 8e9, **TRUTH) - law(1e8, 10e9, **TRUTH)
    assert told["epoch"]["gain_if_new"]["value"] == pytest.approx(expected, rel=0.05)
    assert any("no repetition term" in line for line in told["warnings"])
    assert main(["scaling", "predict", str(study), *arguments]) == 0
    assert "another epoch (2B tokens): at most" in capsys.readouterr().out


def test_another_epoch_of_repeated_data(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((study / "fit.json").read_text())
    record |= {"form": "repeated", "R_D": 15.0, "R_N": 1e4, "noise": {"relative_std": 0.002, "groups": 1, "runs": 2}}
    record["bootstrap"]["samples"] |= {"R_D": [15.0] * 100, "R_N": [1e4] * 100}
    (tmp_path / "fit.json").write_text(json.dumps(record))
    gains = []
    for tokens in ("2B", "20B", "200B"):
        epoch = predict(tmp_path, capsys, "--params", "100M", "--tokens", tokens, "--unique", "2B")["epoch"]
        assert 0 < epoch["gain"]["value"] < epoch["gain_if_new"]["value"]
        assert epoch["worth_it"] == (epoch["gain"]["value"] > 2 * epoch["noise_nats"])
        gains.append(epoch["gain"]["value"])
    assert gains == sorted(gains, reverse=True)
    assert epoch["worth_it"] is False  # the hundredth


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fit"], "name either a study or --from-csv FILE"),
        (["fit", "--from-csv", "points.csv"], "--from-csv: say with --out DIR"),
        (["fit", "nowhere"], "nowhere: no such file, and no shipped preset"),
        (["fit", "--from-csv", "nowhere.csv", "--out", "."], "nowhere.csv: is not here"),
        (["fit", "STUDY", "--at", "E"], "--at E: is not name=number"),
        (["predict", "STUDY"], "nothing to predict with form chinchilla"),
        (["predict", "STUDY", "--params", "many"], "--params many: is no number; write 42, 1e9, 500M or 10B"),
        (["predict", "STUDY", "--params", "-1", "--tokens", "1B"], "--params=-1.0: give a positive number"),
        (["predict", "STUDY", "--flops", "1e400"], "--flops=inf: give a positive number, up to 1e+30"),
        (["predict", "STUDY", "--params", "1", "--tokens", "1e-300"], "--tokens=1e-300: give a positive number"),
        (["predict", "STUDY", "--params", "1", "--tokens", "1", "--flops", "6"], "leave one of the three out"),
        (["predict", "--fit", "nowhere.json", "--flops", "1e19"], "nowhere.json: is not here; make it with"),
        (["predict", "--fit", "STUDY/results.csv", "--flops", "1e19"], "results.csv: is no fit.json of scaling fit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(
    study: Path, arguments: list[str], line: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", *(argument.replace("STUDY", str(study)) for argument in arguments)]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_law_without_a_best_size_says_so(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both exponents at their bound: the best N for these FLOPs is larger than any."""
    record = json.loads((study / "fit.json").read_text())
    record |= {"alpha": 0.01, "beta": 0.01, "A": 1.0, "B": 1e-9}
    (tmp_path / "fit.json").write_text(json.dumps(record))
    assert main(["scaling", "predict", str(tmp_path), "--flops", "1e20"]) == 2
    told = capsys.readouterr().err
    assert "--flops=1e+20: the law has no best size for it (alpha 0.01, beta 0.01" in told
    assert told.count("\n") == 1


def test_a_newer_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fit.json").write_text('{"format": 2}')
    assert main(["scaling", "predict", str(tmp_path), "--flops", "1e19"]) == 2
    assert "format 2 is newer than 1" in capsys.readouterr().err


def test_one_axis_is_predicted_alone(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = str(study / "results.csv"), str(tmp_path)
    assert main(["scaling", "fit", "--from-csv", file, "--out", out, "--form", "power_d", "--draws", "30"]) == 0
    capsys.readouterr()
    told = predict(tmp_path, capsys, "--tokens", "5B")
    reached = predict(tmp_path, capsys, "--target-loss", str(told["loss"]["value"]))
    assert reached["tokens_for_target"]["value"] == pytest.approx(5e9)
    assert main(["scaling", "predict", out, "--flops", "1e19", "--tokens", "1B"]) == 2
    assert "one axis" in capsys.readouterr().err


def test_returns_of_repetition_without_intervals(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ",".join(f"{name}={value}" for name, value in TRUTH.items())
    rows = (study / "results.csv").read_text()
    (tmp_path / "held_out.csv").write_text("n,d,loss,held_out\n1e8,1e9,3.5,1\n")
    (tmp_path / "some.csv").write_text(rows)
    arguments = ["--form", "repeated", "--draws", "0", "--at", at, "--out", str(tmp_path / "fit")]
    assert main(["scaling", "fit", "--from-csv", str(tmp_path / "some.csv"), *arguments]) == 0
    assert main(["scaling", "fit", "--from-csv", str(tmp_path / "held_out.csv"), *arguments]) == 2
    assert "no row is left to judge the law by" in capsys.readouterr().err
    assert main(["scaling", "fit", "--from-csv", str(tmp_path / "some.csv"), *arguments, "--seed", "-1"]) == 2
    assert "--seed=-1: must be 0 or more" in capsys.readouterr().err


def test_a_fit_of_an_earlier_results_csv_says_so(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(study, copy)
    said = "the fit is of another results.csv than the one beside it; make it again with scaling fit"
    arguments = ("--params", "1e8", "--tokens", "1e10")
    assert said not in predict(copy, capsys, *arguments)["warnings"]
    (copy / "results.csv").write_text("".join((study / "results.csv").read_text().splitlines(keepends=True)[:-1]))
    assert said in predict(copy, capsys, *arguments)["warnings"]
    (copy / "results.csv").unlink()
    assert said not in predict(copy, capsys, *arguments)["warnings"]
