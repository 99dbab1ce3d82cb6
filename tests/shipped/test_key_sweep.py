"""`--sweep key=a,b,c` of pretrain and finetune, as a person uses it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds.common.rundir import read_jsonl
from tests.helpers.scaling_study import read_results
from tests.helpers.tasks import DEV, ROWS
from tools import runs
from tools.cluster import Result

Program = Callable[..., "subprocess.CompletedProcess[str]"]
Gpt1 = Callable[..., Result]
SWEEP = ["--sweep", "optimizer.lr=1e-3,1e30", "--sweep", "run.seed=1,2"]


@pytest.mark.slow
def test_every_combination_once_and_a_divergence_ends_no_other(
    program: Program, gpt1: Gpt1, tiny_data: Path, tmp_path: Path
) -> None:
    arguments = ["pretrain", *runs.TINY, f"data.path={tiny_data}", "train.steps=4", "run.name=lr", *SWEEP]
    told = gpt1(*arguments, "--dry-run")
    assert told.code == 0, told.err
    assert told.out.splitlines()[1].split() == ["1e-3", "1", "to", "do", "runs/lr-sweep/lr-1e-3_seed-1"]
    assert told.out.splitlines()[-1] == "runs/lr-sweep: 4 cells, 0 done, 4 to do"
    assert not (tmp_path / "runs").exists()
    ran = program(*arguments, "--jobs", "2")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    found = read_results(tmp_path / "runs" / "lr-sweep")
    assert [(row["optimizer.lr"], row["run.seed"], row["outcome"]) for row in found] == [
        *(("1e-3", "1", "done"), ("1e-3", "2", "done"), ("1e30", "1", "diverged"), ("1e30", "2", "diverged"))
    ]
    losses = [list(read_jsonl(tmp_path / row["run"] / "metrics.jsonl"))[-1]["loss"] for row in found[:2]]
    assert [row["held-out loss"] for row in found[:2]] == [f"{loss:.4f}" for loss in losses]
    assert losses[0] != losses[1]
    assert all(row["held-out loss"] in ran.stdout for row in found)
    assert ran.stderr.count("diverged: step 2: the loss is not finite") == 2, "each was tried once"
    assert "runs/lr-sweep: all cells are done, 2 diverged" in ran.stderr
    before = {row["run"]: (tmp_path / row["run"] / "DONE").stat().st_mtime_ns for row in found[:2]}
    again = gpt1(*arguments)
    assert again.code == 0, again.err
    assert "4 cells, 4 done, 0 to do" in again.err
    assert {run: (tmp_path / run / "DONE").stat().st_mtime_ns for run in before} == before, "what is done stays"
    other = gpt1(*arguments, "model.layers=1")
    assert other.code == 2
    assert "runs/lr-sweep/lr-1e-3_seed-1 ran with model.layers=2" in other.err
    fewer = gpt1(*arguments[:-1], "run.seed=2", "--dry-run")
    assert fewer.code == 2
    assert "results.csv also has lr-1e-3_seed-1, lr-1e30_seed-1, which this sweep would leave out" in fewer.err


@pytest.mark.slow
def test_fine_tuning_shows_its_scores(gpt1: Gpt1, tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "train.csv").write_text(ROWS)
    (tmp_path / "task" / "dev.csv").write_text(DEV)
    tokenizer = tiny_data.parent / "tokenizer"
    arguments = ["task.path=task", f"task.tokenizer={tokenizer}", "model.layers=1", "model.width=32", "model.heads=2"]
    arguments += ["model.context=32", "train.global_batch=8", "train.micro_batch=8", "train.steps=2"]
    ran = gpt1("finetune", "-c", "finetune/table", *arguments, "--sweep", "task.head_dropout=0,0.5")
    assert ran.code == 0, ran.err
    found = read_results(tmp_path / "runs" / "table-sweep")
    assert [row["outcome"] for row in found] == ["done", "done"]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in found)
    assert (tmp_path / "runs" / "table-sweep" / "head_dropout-0.5" / "checkpoints" / "latest").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--sweep", "optimizer.lrr=1,2"],
            "--sweep: optimizer.lrr: the section optimizer has no key 'lrr'. Did you mean",
        ),
        (["--sweep", "optimizer.lr=1e-3,abc"], "--sweep: optimizer.lr: Value 'abc'"),
        (["--sweep", "optimizer.lr=1e-3,-1"], "--sweep: optimizer.lr=-1.0 must be above 0"),
        (["--sweep", "optimizer.lr=1,1"], "optimizer.lr has the value 1 twice"),
        (["--sweep", "optimizer.lr=1,,2"], "write a key and its values, like optimizer.lr=1e-3,1e-4"),
        (["--sweep", "optimizer.lr"], "write a key and its values"),
        (["--sweep", "run.seed=1", "--sweep", "run.seed=2"], "run.seed is named twice"),
        (["--sweep", "run.name=a,b"], "run.name is the same for all trials"),
        (["--sweep", "optimizer.betas=[0.9,0.9],[0.9 0.9]"], "optimizer.betas"),
        (["--sweep", "train.steps=1,2", "--jobs", "0"], "--jobs=0: at least 1"),
        (["--jobs", "2"], "--jobs 2 is how many runs of a sweep run at a time; give --sweep"),
        (["--sweep", "train.steps=1,2", "--print-config"], "--print-config shows the configuration of one run"),
        (["--sweep", "data.path=nowhere,away"], "nowhere: not a dataset"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_line_before_the_first_trial(
    gpt1, in_folder: Path, arguments: list[str], says: str
) -> None:  # type: ignore[no-untyped-def]
    told = gpt1("pretrain", *runs.TINY, *arguments)
    assert told.code == 2, told.err
    assert len(told.lines) == 1, told.err
    assert says in told.err
    assert not (in_folder / "runs").exists()
