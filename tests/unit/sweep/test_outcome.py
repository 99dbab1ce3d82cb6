"""How a trial ended, from what its run folder holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpt1_ds.common.lock import RunLock
from gpt1_ds.plan.machine import find_machine
from gpt1_ds.scaling.tables import COLUMNS
from gpt1_ds.sweep.outcome import RunRecord, dominated, held_out_losses, read
from gpt1_ds.sweep.scaling_collect import rows
from gpt1_ds.sweep.scaling_study import EarlyEnd
from gpt1_ds.sweep.scaling_sweep import ScalingSweep
from tests.helpers.scaling_trials import LADDER, finish, small
from tests.helpers.scaling_trials import read as read_study


def test_every_outcome(tmp_path: Path) -> None:
    done, further, nan, spiked, risen, failed, stopped, behind, running, waiting = small(tmp_path)
    finish(done, 3.0)
    finish(further, 3.0, steps=further.steps - 1)
    further.run_dir.done.write_text('{"step": 1}')  # of a smaller target
    finish(nan, float("nan"))
    nan.run_dir.metrics.write_text(nan.run_dir.metrics.read_text().replace("NaN", "null"))  # as runs write it
    for trial, event in ((spiked, "spike"), (risen, "diverged"), (failed, "failed"), (stopped, "stopped")):
        finish(trial, 4.0, steps=20)
        trial.run_dir.add_event(event, step=20, action="raise", problem="too high", reason="a bus error")
    finish(behind, 4.0, steps=20)
    behind.run_dir.add_event("dominated", reason="far behind")
    finish(running, 4.0, steps=20)
    with RunLock(running.run_dir.lock):
        found = [read(trial.run_dir, trial.steps) for trial in small(tmp_path)]
    assert [record.outcome for record in found] == [
        *("done", "waiting", "diverged", "diverged", "diverged", "failed", "waiting", "dominated", "running"),
        "waiting",
    ]
    assert found[2].loss is not None
    assert math.isnan(found[2].loss)
    assert found[3].reason == "step 20: too high"
    assert found[5].reason == "a bus error"
    assert not waiting.run_dir.path.exists()


@pytest.mark.parametrize("kept", [0, 3, -1])
def test_the_loss_of_a_cell_is_that_of_its_last_step(tmp_path: Path, kept: int) -> None:
    """Without its last lines a run has an earlier loss, which is not that of its tokens."""
    trial = small(tmp_path)[0]
    finish(trial, 3.0)
    lines = trial.run_dir.metrics.read_text().splitlines(keepends=True)
    trial.run_dir.metrics.write_text("".join(lines[:kept]))
    found = read(trial.run_dir, trial.steps)
    assert found.outcome == "failed"
    assert f"of its last step, {trial.steps}; remove the run folder" in found.reason
    assert held_out_losses(trial.run_dir) == []
    assert rows([trial], 1)[0]["loss"] is None
    assert not trial.done


def test_a_line_without_its_loss_is_none(tmp_path: Path) -> None:
    trial = small(tmp_path)[0]
    finish(trial, 3.0)
    with open(trial.run_dir.metrics, "a") as file:
        file.write('{"kind": "eval", "step": 9}\n{"kind": "train", "step": 9}\n{"kind": [], "step": 9}\n')
    found = read(trial.run_dir, trial.steps)
    assert (found.outcome, found.loss) == ("done", 3.0)
    assert found.seconds == pytest.approx(0.5 * trial.steps)
    assert held_out_losses(trial.run_dir)[-1] == 3.0


def test_what_failed_before_a_new_start_is_forgotten(tmp_path: Path) -> None:
    trial = small(tmp_path)[0]
    finish(trial, 4.0, steps=20)
    trial.run_dir.add_event("diverged", step=20, problem="too high")
    trial.run_dir.add_event("started", step=0)
    assert read(trial.run_dir, trial.steps).outcome == "waiting"


def test_seconds_are_those_of_its_own_steps(tmp_path: Path) -> None:
    branch = next(trial for trial in small(tmp_path, schedule="wsd") if trial.trunk is not None and trial.begin >= 10)
    finish(branch, 3.0)
    lines = branch.run_dir.metrics.read_text().splitlines(keepends=True)
    own = [line for line in lines if int(line.split('"step": ')[1].split(",")[0]) > branch.begin]
    branch.run_dir.metrics.write_text("".join(own))
    assert read(branch.run_dir, branch.steps).seconds == pytest.approx(0.5 * (branch.steps - branch.begin))


def record(*losses: float) -> RunRecord:
    return RunRecord("running", "", [], [{"step": 10 * n, "loss": loss} for n, loss in enumerate(losses, 1)])


def test_dominated() -> None:
    rule = EarlyEnd(behind=0.2, after=0.5)
    rivals = {"better": record(5.0, 4.0, 3.0, 2.0)}
    assert dominated(rule, record(6.0), 40, rivals) == "", "too early"
    assert dominated(rule, record(6.0, 4.1), 40, rivals) == "", "close enough"
    assert dominated(rule, record(6.0, 4.3), 40, rivals) == "4.3000 at step 20, where better had 4.0000"
    assert dominated(EarlyEnd(), record(6.0, 9.0), 40, rivals) == "", "off unless asked for"


def test_hopeless_rates_are_ended_and_hours_are_kept(tmp_path: Path) -> None:
    arms = [LADDER, {"name": "rates", "layers": [1], "tokens": ["128K"], "rates": [4]}]
    made = {trial.name: trial for trial in small(tmp_path, arms=arms)}
    study = read_study(tmp_path, arms=arms, stop={"behind": 0.2}, budget_hours=1)
    sweep = ScalingSweep(study, tuple(made.values()), find_machine("cpu"))
    good, bad = made["l1w16-128K-seed1"], made["l1w16-128K-lr4-seed1"]
    finish(good, 3.0)
    finish(bad, 3.5, steps=300)
    assert sweep.watch({bad: 10.0}, 3000.0) == ""
    assert bad.run_dir.stop.exists()
    assert bad.done
    assert bad.result == "dominated: 3.5000 at step 300, where l1w16-128K-seed1 had 3.0000"
    assert sweep.watch({}, 3600.0) == "budget_hours=1 is used up"


def test_checkpoints_stay_as_long_as_a_branch_needs_them(tmp_path: Path) -> None:
    made = small(tmp_path, schedule="wsd")
    sweep = ScalingSweep(read_study(tmp_path, schedule="wsd"), made, find_machine("cpu"))
    branch = next(trial for trial in made if trial.trunk is not None)
    trunk = branch.trunk
    assert trunk is not None
    for trial in made:
        if trial is trunk or (trial.trunk is trunk and trial is not branch):
            finish(trial, 3.0)
    sweep.remove_checkpoints()
    assert trunk.run_dir.checkpoints.is_dir()
    finish(branch, 3.0)
    sweep.remove_checkpoints()
    assert not trunk.run_dir.checkpoints.exists()
    assert not branch.run_dir.checkpoints.exists()


def test_rows_of_every_cell(tmp_path: Path) -> None:
    arms = [LADDER, {"name": "rates", "layers": [1], "tokens": ["8K"], "rates": [0.5, 2], "seeds": [1, 2]}]
    made = small(tmp_path, arms=arms, held_out=["l4w64-128K-seed1"])
    for trial in made:
        if trial.arm == "rates" or trial.name == "l1w16-8K-seed1":
            finish(trial, {0.5: 3.2, 1: 3.1, 2: 3.0}[trial.rate] + 0.01 * trial.config.run.seed)
    found = {row["cell"]: row for row in rows(made, 2)}
    assert list(found["l1w16-8K-seed1"]) == list(COLUMNS)
    best = {name: row["best_rate"] for name, row in found.items() if row["outcome"] == "done"}
    assert {name for name, is_best in best.items() if is_best} == {"l1w16-8K-lr2-seed1", "l1w16-8K-lr2-seed2"}
    waiting = found["l4w64-128K-seed1"]
    assert (waiting["held_out"], waiting["outcome"], waiting["loss"], waiting["best_rate"]) == (1, "waiting", None, 1)
    done = found["l1w16-8K-lr2-seed1"]
    assert done["rank_hours"] == pytest.approx(done["seconds"] * 2 / 3600, abs=1e-6)
