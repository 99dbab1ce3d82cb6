"""Studies as arrays, with stand-ins for SLURM's commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.slurm.status import note_submission
from gpt1_ds.sweep import arrays
from tests.helpers.scaling_trials import read


@pytest.fixture
def study(tiny_data: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words that submit a study to a SLURM that numbers its jobs from 8 on, and in which job 7 of its name waits."""
    read(in_folder)
    commands = in_folder / "bin"
    commands.mkdir()
    sbatch = (
        f'case "$*" in *--test-only*) ;; *) echo . >>{commands}/jobs; echo $((7 + $(wc -l <{commands}/jobs))) ;; esac'
    )
    for name, text in (("sbatch", sbatch), ("squeue", "echo 7")):
        (commands / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    return ["scaling", "submit", "small.yaml", f"data.path={tiny_data}"]


def test_a_study_of_the_same_name_elsewhere_is_another_one(study: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Who believed the line cancelled the jobs of that one."""
    there = RunDir(Path("there/small"))
    there.create(job=True)
    note_submission(there, "7")
    assert main(study) == 0, capfd.readouterr().err
    assert {line["job"] for line in read_jsonl(Path("runs/small/slurm/submitted.jsonl"))} >= {"8"}
    assert main([*study, "run.dir=there"]) == 2
    assert "there/small: job 7 of this study waits or runs, and would run" in capfd.readouterr().err


def test_two_submissions_at_the_same_time(
    study: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw an empty queue, and each cell had two tasks."""
    monkeypatch.setattr(arrays, "LOCK_SECONDS", 0.1)
    Path("runs/small").mkdir(parents=True)
    with RunLock(Path("runs/small/.lock")):
        assert main(study) == 2
    assert "runs/small: another process writes this run folder" in capfd.readouterr().err
    assert not Path("bin/jobs").exists()
    assert main(study) == 0


def test_tasks_that_are_warned_as_they_start_are_refused(study: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*study, "slurm.time=0:05:00", "--dry-run"]) == 2
    assert capfd.readouterr().err.startswith("gpt1-ds: slurm.time=0:05:00 leaves 0 s of each job before slurm.warning")


def test_a_percent_of_a_folder_stays_one(study: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*study, "run.dir=100%x", "--dry-run"]) == 0
    commands = [line for line in capfd.readouterr().out.splitlines() if line.startswith("sbatch ")]
    ends = [word.rpartition("/100%%x/")[2] for line in commands for word in line.split() if "--output=" in word]
    assert ends == ["small/slurm/%A_%a.out", "small/slurm/%j.out"]
