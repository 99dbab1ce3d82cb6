"""A scaling study as a person runs it: planned without torch, run, gone on with, fitted, reported, tracked."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from tests.helpers.scaling_study import read_results
from tests.helpers.wandb_files import read_segments
from tools import runs

pytestmark = pytest.mark.slow

STUDY: dict[str, Any] = {
    "name": "small",
    "overrides": {
        **dict(argument.split("=", 1) for argument in runs.TINY if not argument.startswith(("model.", "checkpoint."))),
        **{"model.context": 32, "train.micro_batch": 8, "tracking.wandb": "offline"},
    },
    "width_per_layer": 16,
    "head_width": 16,
    "schedule": "wsd",
    "epochs_limit": 10,
    "arms": [
        {"name": "sizes", "layers": [1, 2, 3], "tokens": ["1K"]},
        {"name": "budgets", "layers": [1], "tokens": ["4K", "16K"]},
        {"name": "corner", "layers": [3], "tokens": ["4K"]},
        {"name": "seeds", "layers": [1], "tokens": ["1K"], "seeds": [2]},
    ],
    "held_out": ["l3w48-4K-seed1"],
}


def write(folder: Path, data: Path, **changed: Any) -> str:
    study = {**STUDY, **changed}
    study["overrides"] = {**study["overrides"], "data.path": str(data), "run.dir": str(folder / "runs")}
    file = folder / "small.yaml"
    file.write_text(json.dumps(study))
    return str(file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> tuple[str, Path]:
    """(the study's file, its folder)"""
    folder = tmp_path_factory.mktemp("study")
    file = write(folder, tiny_data)
    assert main(["scaling", "run", file]) == 0
    return file, folder / "runs" / "small"


def test_every_cell_is_run_and_collected(finished: tuple[str, Path]) -> None:
    _, folder = finished
    found = {row["cell"]: row for row in read_results(folder)}
    assert len(found) == 7
    assert {row["outcome"] for row in found.values()} == {"done"}
    assert float(found["l3w48-4K-seed1"]["loss"]) < float(found["l1w16-1K-seed1"]["loss"])
    assert not list(folder.glob("*/checkpoints/step-*")), "what was learned is not asked for"


def test_a_branch_is_the_run_that_it_stands_for(finished: tuple[str, Path], tiny_data: Path, tmp_path: Path) -> None:
    """A budget that branched off a trunk ends at the loss of a run of its own, bit for bit."""
    _, folder = finished
    cell = next(row for row in read_results(folder) if float(row["own_share"]) < 1)
    config = folder / cell["cell"] / "config.yaml"
    arguments = [f"run.dir={tmp_path}", "run.name=alone", "checkpoint.resume=auto"]
    assert main(["pretrain", "-c", str(config), "--nproc", "1", *arguments, "tracking.wandb=off"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
    assert float(cell["loss"]) == [line["loss"] for line in lines if line["kind"] == "eval"][-1]


def test_what_is_done_is_not_run_again(finished: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    assert main(["scaling", "run", file]) == 0
    assert "7 cells, 7 done, 0 to do" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")} == before


def test_a_changed_study_is_not_mixed_with_what_ran(
    finished: tuple[str, Path], tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = finished
    shutil.copytree(folder, tmp_path / "runs" / "small")
    file = write(tmp_path, tiny_data, learning_rate={"value": 0.1})
    assert main(["scaling", "run", file]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 7
    assert all("ran with optimizer.lr=" in line and "give the study another name" in line for line in told)


def test_w_and_b_has_a_group_of_runs_and_a_table(finished: tuple[str, Path]) -> None:
    _, folder = finished
    for row in read_results(folder):
        (segment,) = read_segments(folder / row["cell"])
        shown = segment.config
        assert (segment.group, segment.job_type) == ("small", "pretrain")
        assert shown["parameters_matrices_head"] == shown["N"] == int(row["n"])
        assert (shown["study"], shown["arm"], shown["D"]) == ("small", row["arm"], int(row["d"]))
        assert (shown["training_tokens"], shown["training_flops"]) == (int(row["d"]), int(row["flops"]))
    assert len({read_segments(folder / row["cell"])[0].id for row in read_results(folder)}) == 7
    segments = read_segments(folder)
    assert {segment.group for segment in segments} == {"small"}
    assert len({segment.id for segment in segments}) == 1
    growing, whole = (tables(segment.folder) for segment in segments[:2])
    assert [len(table) for table in growing] == list(range(1, 8)), "with each cell that ends"
    assert whole == [[row["cell"] for row in read_results(folder)]] == growing[-1:]


def tables(segment: Path) -> list[list[str]]:
    """The cells in each table of a W&B segment, the shortest first."""
    found = [json.loads(file.read_text()) for file in segment.glob("files/media/table/cells*.json")]
    return sorted(([row[one["columns"].index("cell")] for row in one["data"]] for one in found), key=len)


def test_fit_predict_and_report(finished: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = finished
    assert main(["scaling", "fit", file, "--draws", "50"]) == 0
    assert "held out l3w48-4K-seed1" in capsys.readouterr().out
    (shown,) = (one for one in read_segments(folder) if "fit/alpha" in one.summary)
    told, record = shown.summary, json.loads((folder / "fit.json").read_text())
    logged = {name: value for point in shown.points for name, value in point.items()}
    for name in ("compute", "fit", "residuals", "bootstrap"):
        copied = shown.folder / "files" / logged[f"figures/{name}.path"]
        assert copied.read_bytes() == (folder / "figures" / f"{name}.png").read_bytes()
    assert (told["fit/A"], told["fit/B"]) == (record["A"], record["B"])
    assert told["fit/alpha"] == record["alpha"]
    assert [told["fit/alpha_low"], told["fit/alpha_high"]] == record["intervals"]["alpha"]
    assert "held_out/l3w48-4K-seed1_error_percent" in told
    assert main(["scaling", "predict", file, "--params", "1M", "--tokens", "1M"]) == 0
    assert "loss at N = 1M, D = 1M" in capsys.readouterr().out
    assert main(["scaling", "report", file]) == 0
    page = (folder / "report.html").read_text()
    assert "l3w48-4K-seed1" in page
    assert main(["scaling", "status", file]) == 0
    assert "7 done" in capsys.readouterr().out


def test_the_job_after_the_arrays_collects_and_fits(
    finished: tuple[str, Path], tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = finished
    file, copy = write(tmp_path, tiny_data), tmp_path / "runs" / "small"
    assert main(["scaling", "submit", file, "--dry-run", "tracking.tags=[x]"]) == 0
    *_, command = capsys.readouterr().out.splitlines()
    arguments = shlex.split(command.partition("command.sbatch ")[2])
    assert arguments == ["scaling", "collect", file, "--missing", "--fit", "tracking.tags=[x]"]
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("results.csv", "fit.json", "report.html"))
    assert main([*arguments, "tracking.wandb=off"]) == 0
    assert "7 cells, 7 done" in capsys.readouterr().out
    assert json.loads((copy / "fit.json").read_text())["points"] == 6
    assert "alpha" in (copy / "report.html").read_text()


def test_a_table_grows_offline_in_its_file_alone(finished: tuple[str, Path], tmp_path: Path, tiny_data: Path) -> None:
    _, folder = finished
    copy = shutil.copytree(folder, tmp_path / "runs" / "small", ignore=shutil.ignore_patterns("wandb", "results.csv"))
    shutil.rmtree(copy / "l2w32-1K-seed1")
    assert main(["scaling", "collect", write(tmp_path, tiny_data), "--growing"]) == 0
    assert Counter(row["outcome"] for row in read_results(copy)) == {"done": 6, "waiting": 1}
    assert not (copy / "wandb").exists()


def test_a_missing_run_is_waiting(finished: tuple[str, Path], tmp_path: Path, tiny_data: Path) -> None:
    _, folder = finished
    shutil.copytree(folder, tmp_path / "runs" / "small")
    shutil.rmtree(tmp_path / "runs" / "small" / "l2w32-1K-seed1")
    assert main(["scaling", "collect", write(tmp_path, tiny_data)]) == 0
    outcomes = {row["cell"]: row["outcome"] for row in read_results(tmp_path / "runs" / "small")}
    assert outcomes.pop("l2w32-1K-seed1") == "waiting"
    assert set(outcomes.values()) == {"done"}


def test_scores_of_tasks_stand_beside_their_compute(
    finished: tuple[str, Path], tmp_path: Path, tiny_data: Path
) -> None:
    _, folder = finished
    shutil.copytree(folder, tmp_path / "runs" / "small")
    tasks = tmp_path / "runs" / "small" / "l2w32-1K-seed1" / "tasks" / "sst2"
    tasks.mkdir(parents=True)
    entry = {"task": "sst2", "split": "dev", "step": 3, "metrics": {"accuracy": 0.75}}
    arguments = {**entry, "task": "control/bag of words/sst2", "step": 0, "metrics": {"accuracy": 0.7}}
    majority = {**arguments, "task": "control/majority/sst2", "metrics": {"accuracy": 0.5}}
    (tasks / "eval.json").write_text(json.dumps([entry, {**entry, "split": "train"}, arguments, majority]))
    assert main(["scaling", "collect", write(tmp_path, tiny_data)]) == 0
    with open(tmp_path / "runs" / "small" / "downstream.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    named = ("cell", "task", "metric", "value", "control", "chance")
    assert [row[name] for name in named] == ["l2w32-1K-seed1", "sst2/dev", "accuracy", "0.75", "0.7", "0.5"]


@pytest.mark.parametrize(
    ("changed", "arguments", "said"),
    [
        ({}, ["status", "nowhere"], "nowhere: no such file"),
        ({}, ["collect", "FILE"], "no such study has run; start it with"),
        ({}, ["report", "FILE"], "results.csv: missing"),
        ({}, ["run", "FILE", "--jobs", "0"], "--jobs=0: at least 1"),
        ({}, ["submit", "FILE", "--dry-run", "slurm.nodes=2"], "nproc=1: slurm.nodes=2 has 2 ranks for each cell"),
        ({}, ["submit", "FILE", "--jobs", "0"], "--jobs=0: at least 1"),
        ({}, ["plan", "FILE", "model.widht=3"], "the section model has no key 'widht'"),
        ({"arms": [{"name": "one", "layers": [2], "tokens": ["1K"]}]}, ["plan", "FILE"], "cannot identify"),
        ({}, ["fit", "FILE"], "results.csv: is not here; make it with gpt1-ds scaling run"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    tiny_data: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    arguments: list[str],
    said: str,
) -> None:
    changed = {**changed, "held_out": []} if changed else changed
    file = write(tmp_path, tiny_data, **changed)
    assert main(["scaling", *(file if argument == "FILE" else argument for argument in arguments)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_two_hundred_cells_are_planned_without_torch(tmp_path: Path, tiny_data: Path) -> None:
    arm = {"name": "many", "layers": [1, 2, 3, 4], "tokens": ["1K", "4K", "16K"], "seeds": list(range(17))}
    file = write(tmp_path, tiny_data, arms=[arm], held_out=[])
    code = f"import sys; from gpt1_ds.cli import main; code = main(['scaling', 'plan', {file!r}]); "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules; sys.exit(code)"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "204 cells" in done.stdout
