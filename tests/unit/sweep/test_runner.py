"""The cells of a study, run on real ranks by a stand-in for `finetune`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.lock import LaunchError, RunLock
from gpt1_ds.launcher import accelerator
from gpt1_ds.report.study_page import write_study
from gpt1_ds.report.study_results import read_study_results
from gpt1_ds.sweep import runner
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep
from tests.helpers.finetuning_trials import FILE, behave, events, planned
from tests.helpers.processes import wait_for

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def run(sweep: FinetuningSweep, jobs: int = 2) -> int:
    """Without the reports, which are drawn nine times in a study of eight cells."""
    return runner.run(sweep, jobs)


def run_with_reports(sweep: FinetuningSweep, jobs: int = 2) -> int:
    return runner.run(sweep, jobs, lambda: write_study(sweep.folder))


def test_all_cells_once(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    assert run_with_reports(sweep) == 0
    assert sweep.left == []
    assert not sweep.trials[0].run_dir.checkpoints.exists(), "keep_checkpoints is false"
    assert len((sweep.folder / "results.csv").read_text().splitlines()) == 1 + 8
    log = (sweep.folder / "study.log").read_text()
    assert "s/cola/full/seed-1: a line for the terminal" in log
    assert "0 of 8 left" in log
    assert run(sweep) == 0
    assert len(events(sweep, "done")) == 8, "nothing ran twice"


def test_checkpoints_can_be_kept(tmp_path: Path) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]") + "keep_checkpoints: true\n")
    assert run(sweep) == 0
    assert (sweep.trials[0].run_dir.checkpoints / "step-00000002").is_dir()


def test_the_reports_grow_with_every_cell(tmp_path: Path) -> None:
    sweep, seen = planned(tmp_path), []
    assert runner.run(sweep, 1, lambda: seen.append(read_study_results(sweep.folder).done)) == 0
    assert seen == list(range(9))


def test_a_cell_that_fails_is_tried_again_and_then_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, cola="fail once", rte="fail")
    assert run_with_reports(sweep, 1) == 1
    tried = [event["cell"] for event in events(sweep, "failed")]
    assert [tried.count(f"{task}/full/seed-1") for task in ("cola", "rte")] == [1, sweep.study.tries]
    assert [str(trial) for trial in sweep.left] == ["rte, full, seed 1", "rte, no pre-training, seed 1"]
    said = capsys.readouterr().err
    assert said.count("rte, full, seed 1: failed: RuntimeError: out of luck; its run folder is") == 1
    assert "Traceback" not in said
    assert "Traceback" in (sweep.folder / "study.log").read_text()
    assert "2 failed" in (sweep.folder / "table.md").read_text()
    behave(sweep)
    assert run_with_reports(sweep, 1) == 0
    assert "failed" not in (sweep.folder / "table.md").read_text()


def test_a_cell_that_diverged_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would diverge again: how it ended is its result."""
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, rte="diverge")
    assert run_with_reports(sweep, 1) == 0
    assert events(sweep, "failed") == []
    said = capsys.readouterr().err
    assert "rte, full, seed 1: diverged: step 2: the loss is not finite" in said
    assert f"{sweep.folder}: all cells are done, 2 diverged\n" in said
    assert "2 of 4 cells are done, from nowhere; 2 diverged.\n" in (sweep.folder / "table.md").read_text()
    page = (sweep.folder / "study.html").read_text()
    assert "<td>rte/full/seed-1</td><td>step 2: the loss is not finite</td>" in page
    assert 'http-equiv="refresh"' not in page, "nothing will be added to it"
    assert [line.split()[0] for line in sweep.table()][:4] == ["done", "done", "diverged", "diverged"]
    behave(sweep)
    assert run(sweep, 1) == 0
    assert len(events(sweep, "done")) == 4, "nothing ran twice"


def test_a_model_that_others_need_is_not_tried_again_where_it_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    monkeypatch.setattr(type(sweep.trials[0]), "done", property(lambda trial: trial.run_dir.done.exists()))
    behave(sweep, rte="diverge")
    assert run(sweep, 1) == 1
    assert [event["again"] for event in events(sweep, "failed")] == [False, False]


def test_what_a_person_must_mend_is_not_tried_again(tmp_path: Path) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, rte="refuse")
    assert run(sweep, 1) == 1
    assert [(event["reason"], event["again"]) for event in events(sweep, "failed")] == [
        ("task.max_length=3 is too short", False)
    ] * 2


def test_a_run_that_is_done_without_its_result_has_failed(tmp_path: Path) -> None:
    """It would say again and again that it is done."""
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, rte="lose")
    assert run(sweep, 1) == 1
    assert events(sweep, "interrupted") == []
    (reason, again), _ = [(event["reason"], event["again"]) for event in events(sweep, "failed")]
    assert "lacks the result; remove the run folder" in reason
    assert not again


def test_a_cell_whose_beginning_is_not_there_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    trunk, branch = sweep.trials[:2]
    sweep = replace(sweep, trials=(trunk, replace(branch, trunk=trunk, begin=7)))
    assert run(sweep, 1) == 1, "the trunk is done, and has no such checkpoint"
    told = "cola, no pre-training, seed 1: failed: cola, full, seed 1 has not left the checkpoint that it begins from"
    assert told in capsys.readouterr().err


def in_the_background(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.mark.parametrize(("asked", "code"), [("STOP", 0), ("SIGTERM", 75), ("SIGINT", 75)])
def test_a_stop_lets_the_running_cells_save(tmp_path: Path, asked: str, code: int) -> None:
    sweep = planned(tmp_path)
    behave(sweep, rte="wait")
    waiting = [trial for trial in sweep.trials if trial.task == "rte"][:2]

    def ask() -> None:
        wait_for(lambda: all(list(trial.run_dir.logs.parent.glob("events.jsonl")) for trial in waiting))
        time.sleep(0.2)
        if asked == "STOP":
            (sweep.folder / "STOP").touch()
        else:
            os.kill(os.getpid(), getattr(signal, asked))

    thread = in_the_background(ask)
    assert run(sweep) == code
    thread.join()
    assert not (sweep.folder / "STOP").exists()
    assert all((trial.run_dir.checkpoints / "step-00000001").is_dir() for trial in waiting), "they saved"
    assert events(sweep, "failed") == []
    (sweep.folder / "hold").unlink()
    assert run(sweep) == 0


def test_a_second_interrupt_ends_the_cells_at_once(tmp_path: Path) -> None:
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, cola="wait")
    stuck = sweep.trials[0].run_dir

    def ask() -> None:
        wait_for(stuck.events.exists)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_the_background(ask)
    assert run(sweep, 1) == 75
    thread.join()
    assert not stuck.done.exists()


def test_a_signal_to_the_whole_group_lets_the_cells_save(tmp_path: Path) -> None:
    """As of a lost terminal or a batch system: it reaches the fork server, too."""
    sweep = planned(tmp_path, FILE.replace("[1, 2]", "[1]"))
    behave(sweep, cola="wait")
    code = f"from tests.helpers.finetuning_trials import run; raise SystemExit(run({str(tmp_path)!r}, 2))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    waiting = [trial for trial in sweep.trials if trial.task == "cola"]
    wait_for(lambda: all(trial.run_dir.events.exists() for trial in waiting))
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 75
    assert all((trial.run_dir.checkpoints / "step-00000001").is_dir() for trial in waiting), "they saved"
    assert events(sweep, "failed") == []


def test_going_on_after_kill_9(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    behave(sweep, rte="wait")
    code = f"from tests.helpers.finetuning_trials import run; raise SystemExit(run({str(tmp_path)!r}, 2))"
    waiting = [trial for trial in sweep.trials if trial.task == "rte"][:2]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for(
        lambda: (
            all(trial.run_dir.events.exists() for trial in waiting) and all(trial.done for trial in sweep.trials[:2])
        )
    )
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) >= 3, "the fork server and two ranks"
    process.kill()
    process.wait()
    wait_for(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks))
    assert [trial.done for trial in sweep.trials[:4]] == [True, True, False, False]
    (sweep.folder / "hold").unlink()
    done = len(events(sweep, "done"))
    assert run(sweep) == 0
    assert len(events(sweep, "done")) == 8
    assert done == 2, "what was done was not done again"


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = planned(tmp_path)
    sweep.folder.mkdir(parents=True)
    monkeypatch.setattr(runner, "LOCK_SECONDS", 0.1)
    with RunLock(sweep.folder / ".lock"), pytest.raises(LaunchError, match="another process writes"):
        run(sweep)


def test_the_cores_are_divided() -> None:
    cores = len(os.sched_getaffinity(0))
    assert [runner.threads(ranks) for ranks in (1, cores, 2 * cores)] == [cores, 1, 1]


def test_a_cpu_build_in_a_gpu_job_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: False)
    sweep = planned(tmp_path)
    with pytest.raises(ConfigError, match="SLURM_GPUS_ON_NODE=8 promises a GPU"):
        run(sweep)
    assert not (sweep.folder / "study.json").exists()
