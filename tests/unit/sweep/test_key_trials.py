"""Trials of `--sweep`: what trackers show of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.config import load, to_yaml
from gpt1_ds.sweep.key_sweep import KeySweep, KeyTrial, make_key_sweep


def sweep_of(lists: Sequence[str], *own: str) -> KeySweep:
    """A sweep of these lists, of a run `lr` that has the keys `own` besides."""
    return make_key_sweep(lists, lambda words: load([], ["run.name=lr", *own, *words]), None, None)


def test_trackers_show_the_sweep_and_its_values() -> None:
    sweep = sweep_of(["optimizer.lr=1e-3,1e-2", "run.seed=2"], "tracking.facts={team: nlp}")
    tracking = sweep.trials[1].config.tracking
    facts = {"team": "nlp", "study": "lr-sweep", "arm": "optimizer.lr=1e-2 run.seed=2"}
    assert (tracking.group, tracking.facts) == ("lr-sweep", facts)


def test_a_trials_score_is_its_own(tmp_path: Path) -> None:
    """Whatever else of it was evaluated afterwards."""
    task = ["task.name=cola", f"task.path={tmp_path}", "checkpoint.init_from=x"]
    trial = sweep_of(["run.seed=1,2"], f"run.dir={tmp_path}", *task).trials[0]
    trial.run_dir.create()
    entry = {"task": "cola", "split": "dev", "step": 9, "metrics": {"matthews": 0.5}, "data": "a"}
    others = [{**entry, "step": 3}, {**entry, "data": "b"}, {**entry, "task": "sts", "metrics": {"spearman": 0.3}}]
    told = [entry, *({"metrics": {"matthews": 0.1}, **one} for one in others)]
    trial.run_dir.evaluation.write_text(json.dumps(told))
    assert trial.score == ("matthews", 0.5)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_trial_that_lost_the_end_of_its_metrics_is_not_done(kept: int, tmp_path: Path) -> None:
    trial = sweep_of(["run.seed=1,2"], f"run.dir={tmp_path}").trials[0]
    trial.run_dir.create()
    trial.run_dir.done.write_text('{"step": 20}')
    kinds = [("train", 10), ("eval", 10), ("train", 20), ("eval", 20)]
    lines = [json.dumps({"kind": kind, "step": step, "loss": 3.0, "step_seconds": 0.1}) + "\n" for kind, step in kinds]
    trial.run_dir.metrics.write_text("".join(lines[:kept]))
    assert (trial.done, trial.score) == (False, ("held-out loss", None))
    trial.run_dir.metrics.write_text("".join(lines))
    assert (trial.done, trial.score) == (True, ("held-out loss", 3.0))
    trial.run_dir.metrics.write_text(lines[0] + lines[2])  # of data without held-out text
    assert (trial.done, trial.score) == (True, ("held-out loss", None))


def test_a_trial_that_diverged_is_done_and_has_no_score(tmp_path: Path) -> None:
    """Its last loss before it diverged would be compared with the others' last ones."""
    sweep = sweep_of(["optimizer.lr=1e-3,9"], f"run.dir={tmp_path}")
    good, bad = sweep.trials
    for trial, last in ((good, 20), (bad, 10)):
        trial.run_dir.create()
        trial.run_dir.add_event("started", step=0)
        lines = [{"kind": kind, "step": last, "loss": 3.0, "step_seconds": 0.1} for kind in ("train", "eval")]
        trial.run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    good.run_dir.done.write_text('{"step": 20}')
    bad.run_dir.add_event("spike", step=11, action="skip", problem="the loss is not finite")
    assert not bad.done, "it was skipped"
    bad.run_dir.add_event("diverged", step=16, problem="the loss is not finite (6 steps in a row)")
    assert (sweep.left, bad.score) == ([], ("held-out loss", None))
    assert bad.result == "diverged: step 16: the loss is not finite (6 steps in a row)"
    assert [(row["outcome"], row["held-out loss"]) for row in sweep.rows()] == [("done", "3.0000"), ("diverged", "")]
    assert list(sweep.table())[-1].endswith("2 cells, 2 done, 0 to do, 1 diverged")
    bad.run_dir.add_event("started", step=0)
    assert sweep.left == [bad], "somebody started it again"


def test_a_trial_that_diverged_before_its_first_line_is_of_its_configuration(tmp_path: Path) -> None:
    """It would stand for a run with other values."""

    def trial(*more: str) -> KeyTrial:
        return sweep_of(["run.seed=1,2"], f"run.dir={tmp_path}", *more).trials[0]

    ran = trial("optimizer.lr=9")
    ran.run_dir.create()
    ran.run_dir.config.write_text(to_yaml(ran.config))
    ran.run_dir.add_event("started", step=0)
    assert list(trial("optimizer.lr=1").differences()) == [], "no run took a step there"
    ran.run_dir.add_event("spike", step=1, action="raise", problem="the loss is not finite")
    assert list(ran.differences()) == []
    (said,) = trial("optimizer.lr=1").differences()
    assert "ran with optimizer.lr=9.0, and the study now says 1.0; set it back" in said


def test_a_sweep_does_not_replace_the_results_of_another(tmp_path: Path) -> None:
    def sweep(values: str) -> KeySweep:
        return sweep_of([f"optimizer.lr={values}"], f"run.dir={tmp_path}")

    first = sweep("1e-3,1e-2")
    first.check()
    for trial in first.trials:
        trial.run_dir.create()
    first.trials[0].run_dir.done.write_text('{"step": 20}')
    first.write()
    with pytest.raises(ConfigError) as caught:
        sweep("3e-3").check()
    said = (
        f"--sweep: {first.folder}/results.csv also has lr-1e-3, which this sweep would leave out; sweep all values at"
    )
    assert list(caught.value.problems) == [f"{said} once, choose another run.name, or remove these run folders"]
    sweep("1e-3,3e-3").check()  # of 1e-2 nothing was learned
    first.trials[0].run_dir.done.unlink()
    sweep("3e-3").check()


def test_the_folder_of_a_run_is_no_sweep_s(tmp_path: Path) -> None:
    sweep = sweep_of(["run.seed=1,2"], f"run.dir={tmp_path}")
    sweep.folder.mkdir()
    sweep.check()
    (sweep.folder / "config.yaml").touch()
    with pytest.raises(ConfigError, match="lr-sweep is the folder of a run; give the study or sweep another name"):
        sweep.check()


def test_losses_of_other_held_out_rows_are_not_compared() -> None:
    with pytest.raises(ConfigError) as caught:
        sweep_of(["train.eval_batches=1,0"])
    said = "--sweep: train.eval_batches is the same for all trials; give it as train.eval_batches=1"
    assert list(caught.value.problems) == [said]
    trial = sweep_of(["run.seed=1,2"]).trials[0]
    kept = {key: trial.must_keep(key) for key in ("train.eval_batches", "train.eval_every", "train.evaluations")}
    assert kept == {"train.eval_batches": True, "train.eval_every": False, "train.evaluations": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizer.lr=1e-3,0.001"], "optimizer.lr=1e-3 and optimizer.lr=0.001"),
        (["run.seed=1,01", "optimizer.lr=1e-3,1e-2"], "run.seed=1 and run.seed=01"),
        (["train.tokens=1M,1000000,2M"], "train.tokens=1M and train.tokens=1000000"),
    ],
)
def test_equal_values_in_other_writing_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        sweep_of(words, "train.steps=null")
    assert list(caught.value.problems) == [f"--sweep: {said} mean the same; leave one out"]
