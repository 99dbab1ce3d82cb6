"""What follows from how a job ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.slurm import tries


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create()
    tries.begin(found, "7", "0")
    return found


def finish(run_dir: RunDir, saved: int, code: int | None, status: int = 1, most: int = 5) -> tries.Verdict:
    if saved:
        run_dir.checkpoint(saved).mkdir(exist_ok=True)
    if code is not None:
        write_json(run_dir.outcome("7"), {"code": code, "reason": "said", "step": saved})
    return tries.end(run_dir, "7", "0", status, most)


@pytest.mark.parametrize(
    ("saved", "code", "status", "expected"),
    [
        (9, 0, 0, (0, False)),  # done, or stopped by a person
        (9, 75, 0, (75, True)),  # saved, to be continued
        (0, 75, 0, (75, False)),  # nothing was gained
        (9, 1, 1, (1, False)),  # diverged, say: the next would come to the same
        (0, 1, 1, (1, False)),
        (9, 2, 1, (2, False)),  # wrong words stay wrong
        (9, None, 137, (1, True)),  # killed
        (0, None, 137, (1, False)),
    ],
)
def test_verdicts(run_dir: RunDir, saved: int, code: int | None, status: int, expected: tuple[int, bool]) -> None:
    verdict = finish(run_dir, saved, code, status)
    assert (verdict.code, verdict.go_on) == expected


def test_there_is_a_last_try(run_dir: RunDir) -> None:
    for job in ("8", "9"):
        tries.begin(run_dir, job, "0")
    assert finish(run_dir, 9, 75, most=4).go_on
    assert not finish(run_dir, 9, 75, most=3).go_on


def test_progress_is_counted_from_where_the_job_began(run_dir: RunDir) -> None:
    run_dir.checkpoint(9).mkdir()
    tries.begin(run_dir, "7", "0")
    verdict = finish(run_dir, 9, 75)
    assert not verdict.go_on
    assert "began at 9" in verdict.reason


def test_an_outcome_of_an_earlier_try_is_forgotten(run_dir: RunDir) -> None:
    write_json(run_dir.outcome("7"), {"code": 0, "reason": "done"})
    run_dir.job_stop("7").touch()
    tries.begin(run_dir, "7", "1")
    assert not run_dir.job_stop("7").exists(), "or the requeued job would stop at once"
    assert tries.end(run_dir, "7", "1", 137, 5).code == 1
