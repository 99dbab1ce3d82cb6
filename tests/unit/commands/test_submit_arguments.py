"""What `slurm submit` makes of the arguments of any command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.files import shipped


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The arguments of the sbatch command that would be given."""
    assert main(["slurm", "submit", "--dry-run", *arguments]) == 0
    return capsys.readouterr().out.splitlines()[-1].split()


def test_keys_of_the_job_are_not_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "build", "--input", "a", "--tokenizer", "t", "--out", "d", "slurm.cpus_per_task=3"]
    found = command(capsys, *arguments)
    assert "--cpus-per-task=3" in found
    assert "--job-name=data-build" in found
    assert not [argument for argument in found if argument.startswith("--dependency")], "it is of no run"
    assert "--signal=B:USR1@300" in found
    assert "--signal=B:USR1@300" not in command(capsys, *arguments, "slurm.time=0:09:59"), "a warning as it begins"
    script = next(number for number, argument in enumerate(found) if argument.endswith("/command.sbatch"))
    assert found[script + 1 :] == arguments[:-1]


def test_files_are_the_jobs_unless_the_command_reads_some(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("slurm: {partition: long}\n")
    building = command(capsys, "data", "verify", "d", "-c", str(site))
    assert "--partition=long" in building
    assert building[-3:] == ["data", "verify", "d"]
    scoring = command(capsys, "evaluate", "runs/a", "-c", str(site), "slurm.ranks_per_node=2")
    assert "--partition=long" in scoring
    assert scoring[-6:] == ["evaluate", "runs/a", "-c", str(site), "--nproc", "2"]


ADDRESS = "https://me:s3cr3t-Value@host/a.txt"
BUILD = ["--tokenizer", "t", "--out", "d"]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["data", "build", "--input", "a.txt", ADDRESS, *BUILD], "--input"),
        (["data", "build", f"--input={ADDRESS}", *BUILD], "--input"),
        (["data", "build", "--input", "https://host/a.txt?page=1&sig=s3cr3t-Value", *BUILD], "--input"),
        (["evaluate", "runs/a", f"data.path={ADDRESS}"], "data.path"),
        (["evaluate", ADDRESS], "the command"),
        (["report", "runs/a", "--out", "hf_" + "s3cr3tValue" * 3], "--out"),
        (["pretrain", "--sweep", f"data.path={ADDRESS},a"], "data.path"),
        (["scaling", "run", "fit.yaml", f"data.path={ADDRESS}"], "data.path"),
    ],
)
def test_secrets_among_the_words_are_refused_before_anything_is_saved(
    arguments: list[str],
    place: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", "submit", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gpt1-ds: {place}: this ")
    assert line.endswith("saved in its folder; export it before submitting, or let slurm.setup source a file of yours")
    assert "s3cr3t" not in line
    assert not list(tmp_path.iterdir())


def test_words_that_only_look_like_secrets_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "sample",
        "--checkpoint",
        "runs/a",
        "--tokens",
        "50",
        "--prompt",
        "The password= is: a key; token=3",
        "--seed=1",
    ]
    assert main(["slurm", "submit", "--dry-run", *arguments]) == 0
    arguments = [
        "data",
        "build",
        "--input",
        "https://host/a.jsonl?page=1",
        "s3://b/a@b.txt",
        "--text-key",
        "body",
        *BUILD,
    ]
    assert main(["slurm", "submit", "--dry-run", *arguments]) == 0


def test_jobs_before_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--dependency=singleton,afterok:7:9" in command(capsys, "pretrain", "--after", "7", "--after", "9")
    assert "--dependency=afterok:7" in command(capsys, "report", "runs/a", "slurm.after=[7]")
    deferred = command(capsys, "finetune", "-c", "finetune/cola", "checkpoint.init_from=runs/none", "--after", "7")
    assert deferred[-3:] == ["checkpoint.init_from=runs/none", "-c", "finetune/cola"]
    slurm = tmp_path / "runs" / "a" / "slurm"
    slurm.mkdir(parents=True)
    (slurm / "submitted.jsonl").write_text('{"job": "5"}\n{"job": "11"}\n')
    assert "--dependency=afterok:11" in command(capsys, "report", "runs/a", "--after", "runs/a")


def test_a_sweep_is_an_array_and_a_job_behind_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["pretrain", "--sweep", "optimizer.lr=1e-3,1e-4", "slurm.jobs=1", "data.path=python-docs"]
    assert main(["slurm", "submit", *arguments, "--dry-run", "--after", "7"]) == 0
    array, last = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("sbatch"))
    assert {"--array=0-1%1", "--dependency=afterok:7"} <= set(array)
    assert "--dependency=afterany:JOB" in last
    assert last[-len(arguments) :] == arguments


def test_each_cell_has_the_ranks_that_it_needs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GPT-1's own ladder the models of one GPU's hours, and one that takes more of a day than one GPU has."""
    monkeypatch.chdir(tmp_path)
    shipped_study = (shipped("configs") / "scaling" / "gpt1.yaml").read_text()
    (tmp_path / "fit.yaml").write_text(f"{shipped_study}fit_ranks: true\n")
    arguments = ["fit.yaml", "model.vocab_size=40000", "slurm.gpus_per_node=h100:8"]
    assert main(["slurm", "submit", "scaling", "run", *arguments, "--dry-run"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("sbatch")]
    gpus = [[argument for argument in line if argument.startswith("--gpus-per-node=")] for line in told]
    assert gpus == [
        ["--gpus-per-node=h100:1"],
        ["--gpus-per-node=h100:4"],
        ["--gpus-per-node=h100:1"],
        ["--gpus-per-node=h100:8"],
    ]
    waits = [[argument.count(":JOB") for argument in line if argument.startswith("--dependency=")] for line in told]
    assert waits == [[], [], [2], [3]], "branches for all trunks, what collects for all"
    assert " ".join(told[-1]).endswith(
        "scaling collect fit.yaml --missing --fit model.vocab_size=40000 slurm.gpus_per_node=h100:8"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "name a checkpoint"),
        (["data", "build", "--inptu", "a"], "did you mean --input?"),
        (["data", "verify", "d", "slurm.spare_nodes=1"], "slurm.spare_nodes=1: data has no ranks that begin again"),
        (["data", "verify", "d", "slurm.nodes=2"], "slurm.nodes=2: data runs on one node"),
        (["slurm", "check"], "slurm submit slurm: computes nothing"),
        (["pretrain", "--nproc", "2"], "leave --nproc, --sweep out"),
        (["pretrian"], "did you mean pretrain?"),
        (["report", "runs/a", "--after", "runs/none"], "slurm.after=runs/none: is no job, and no folder of a run"),
        (["finetune", "-c", "finetune/cola", "checkpoint.init_from=runs/none"], "runs/none: no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_before_it_is_queued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", "submit", *arguments]) == 2
    answer = capsys.readouterr().err
    assert said in answer
    assert len(answer.splitlines()) == 1
