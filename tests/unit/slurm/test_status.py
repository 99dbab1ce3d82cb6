"""What `slurm status` says of a run folder in any state, and the places of its submissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.slurm.status import describe, jobs, note_submission
from gpt1_ds.slurm.submit import call, next_place


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create(job=True)
    return found


@pytest.mark.parametrize("torn", ["", "[]", '{"st'])
def test_torn_files_are_no_traceback(torn: str, run_dir: RunDir) -> None:
    note_submission(run_dir, "7")
    run_dir.metrics.write_text('{"kind": "train", "step": 3, "loss": null}\n')
    run_dir.done.write_text(torn)
    run_dir.outcome("7").write_text(torn)
    first, job = list(describe(run_dir))
    assert first == f"{run_dir.path}: step 3, loss not finite; done at step -"
    assert job.startswith("job 7: ")
    run_dir.outcome("7").write_text('{"code": 0, "reason": "done", "step": 3}')
    assert list(describe(run_dir))[1].endswith("; the run says done (0) at step 3")


def test_an_event_of_no_job_names_none(run_dir: RunDir) -> None:
    run_dir.add_event("started", step=0, job="")
    assert list(describe(run_dir))[-1].endswith(" started step=0")


def test_a_controller_that_does_not_answer_is_no_fault_of_a_key(tmp_path: Path) -> None:
    command = tmp_path / "sbatch"
    command.write_text("#!/bin/sh\necho 'error: Unable to contact slurm controller' >&2\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(LaunchError, match="SLURM's controller does not answer; try `sinfo`") as told:
        call([str(command)], {}, LaunchError)
    assert "slurm.*" not in str(told.value)


def test_a_surrounding_job_hands_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its deadline, which is over, the new job would hand over after each step."""
    for name in ("GPT1_DS_DEADLINE", "GPT1_DS_CONTINUES", "GPT1_DS_RUN", "GPT1_DS_FAULTS", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "5")
    monkeypatch.delenv("GPT1_DS_DATA", raising=False)
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("GPT1_DS_MACHINE", "mine")
    monkeypatch.setenv("SBATCH_ACCOUNT", "nlp")
    monkeypatch.setenv("SBATCH_MEM_BIND", "local")
    told = dict(line.split("=", 1) for line in call(["env"], {"GPT1_DS_LAUNCH": "a"}, LaunchError).splitlines())
    ours = {name: value for name, value in told.items() if name.startswith(("GPT1_DS_", "SLURM_", "SBATCH_"))}
    profile = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "nlp"}
    assert ours == {**profile, "GPT1_DS_MACHINE": "mine", "GPT1_DS_LAUNCH": "a"}


def test_jobs_in_their_order(run_dir: RunDir) -> None:
    for job in ("9", "10_2", "10_1"):
        note_submission(run_dir, job)
    assert jobs(run_dir) == ["9", "10_1", "10_2"]


def test_a_submission_never_takes_the_place_of_another(run_dir: RunDir) -> None:
    assert next_place(run_dir.slurm) == run_dir.slurm.resolve() / "submission-1"
    for name in ("submission-2", "submission-9", "submission-x"):
        (run_dir.slurm / name).mkdir()
    assert next_place(run_dir.slurm).name == "submission-10"


def test_a_folder_that_is_no_runs_has_no_state(tmp_path: Path) -> None:
    """It said "no step yet" of the folder above the runs, as of a run that waits."""
    with pytest.raises(ConfigError, match=r"no run folder .*; name a run folder, like runs/NAME$"):
        list(describe(RunDir(tmp_path)))
