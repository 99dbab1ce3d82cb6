"""A study's cells: names, sizes, budgets, trunks, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.architecture.count import counts, parameters
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.config import to_yaml
from gpt1_ds.config.presets import SHIPPED
from gpt1_ds.sweep.pretraining_trials import PretrainingTrial
from gpt1_ds.sweep.scaling_collect import rows
from gpt1_ds.sweep.scaling_study import load_scaling
from gpt1_ds.sweep.scaling_sweep import unidentified, warnings
from gpt1_ds.sweep.scaling_trials import make_trials, study_folder
from gpt1_ds.training.schedule import learning_rate
from tests.helpers.scaling_trials import LADDER, STUDY, finish, read, small


def by_name(folder: Path, **changed: Any) -> dict[str, Any]:
    return {trial.name: trial for trial in small(folder, **changed)}


def test_ladder_has_gpt1s_shape_and_counts(tmp_path: Path) -> None:
    found = by_name(tmp_path)
    assert len(found) == 10
    trial = found["l4w64-128K-seed1"]
    model = trial.config.model
    assert (model.layers, model.width, model.heads) == (4, 64, 4)
    assert trial.sizes["all"] == parameters(model, 500)
    assert trial.sizes["transformer"] == 4 * (12 * 64 * 64 + 13 * 64)
    assert trial.sizes["matrices_head"] == 4 * 12 * 64 * 64 + 500 * 64 == trial.parameters
    assert trial.steps == 500
    assert trial.tokens == 500 * 8 * 32
    assert trial.flops == trial.tokens * (6 * trial.parameters + 12 * 4 * 32 * 64)
    assert trial.config.run.name == "small/l4w64-128K-seed1"
    assert trial.config.tracking.group == "small"
    shown = trial.config.tracking.facts
    assert (shown["study"], shown["arm"]) == ("small", trial.arm)
    assert (shown["N"], shown["D"], shown["U"]) == (trial.parameters, trial.tokens, trial.unique)


def test_convention_names_n(tmp_path: Path) -> None:
    trial = by_name(tmp_path, convention="all")["l2w32-8K-seed1"]
    assert trial.parameters == counts(trial.config.model, 500)["all"]


def test_every_rate_names_a_folder(tmp_path: Path) -> None:
    """1e6 is written 1e+06, which no run may be called."""
    arm = {"name": "rates", "layers": [1], "tokens": ["8K"], "rates": [1e6, 1e-6]}
    names = {trial.name for trial in small(tmp_path, arms=[LADDER, arm])}
    assert {"l1w16-8K-lr1e06-seed1", "l1w16-8K-lr1e-06-seed1"} <= names


def test_rates_follow_the_width(tmp_path: Path) -> None:
    rule = {"value": 0.01, "reference": 16, "exponent": -0.5}
    found = by_name(tmp_path, learning_rate=rule)
    assert found["l1w16-8K-seed1"].config.optimizer.lr == 0.01
    assert found["l4w64-8K-seed1"].config.optimizer.lr == pytest.approx(0.005)
    arms = [LADDER, {"name": "rates", "layers": [2], "tokens": ["8K"], "rates": [0.5, 2]}]
    half, whole, double = (
        by_name(tmp_path, arms=arms)[f"l2w32-8K{rate}-seed1"].config.optimizer.lr for rate in ("-lr0.5", "", "-lr2")
    )
    assert (half, double) == pytest.approx((whole / 2, whole * 2))


@pytest.mark.parametrize(
    ("arm", "shapes"),
    [
        ({"kind": "depth", "layers": [2, 6], "width": 32}, [(2, 32), (6, 32)]),
        ({"kind": "shape", "layers": [2, 8], "parameters": 98304}, [(2, 64), (8, 32)]),
    ],
)
def test_kinds_say_how_widths_follow(tmp_path: Path, arm: dict[str, Any], shapes: list[tuple[int, int]]) -> None:
    made = small(tmp_path, arms=[{"name": "it", "tokens": ["8K"], **arm}])
    assert sorted((trial.config.model.layers, trial.config.model.width) for trial in made) == shapes


def test_repeated_data_have_epochs(tmp_path: Path) -> None:
    arm = {"name": "repeats", "kind": "data", "layers": [2], "width": 32, "tokens": ["32K"], "unique_tokens": ["8K"]}
    (trial,) = small(tmp_path, arms=[arm])
    assert (trial.name, trial.unique, trial.config.data.unique_tokens) == ("l2w32-32K-u8K-seed1", 8000, 8000)
    assert trial.epochs == trial.tokens / 8000


def test_branches_begin_where_their_decay_does(tmp_path: Path) -> None:
    found = by_name(tmp_path, schedule="wsd")
    trunk, branch = found["l2w32-128K-seed1"], found["l2w32-32K-seed1"]
    assert trunk.trunk is None
    assert branch.trunk is trunk
    assert branch.config.checkpoint.resume == str(trunk.run_dir.checkpoint(branch.begin))
    assert branch.begin % trunk.config.checkpoint.keep_every == 0
    for step in range(1, branch.begin + 1):  # the trunk's steps are those that the branch would have made
        rates = [learning_rate(trial.config.schedule, 1.0, step, trial.steps) for trial in (trunk, branch)]
        assert rates[0] == rates[1]
    assert not branch.ready
    trunk.run_dir.checkpoint(branch.begin).mkdir(parents=True)
    assert branch.ready
    assert found["l1w16-8K-seed2"].trunk is None, "alone with its seed"


def test_a_finished_wsd_study_can_be_extended_and_have_a_cell_again(tmp_path: Path) -> None:
    """Its trunks' checkpoints are gone: what is missing begins from scratch, with the same numbers."""
    before = by_name(tmp_path, schedule="wsd")
    for trial in before.values():
        finish(trial, 3.0)
    again, trunk = before["l2w32-32K-seed1"], before["l2w32-128K-seed1"]
    assert (again.trunk, trunk.trunk) == (trunk, None)
    shutil.rmtree(again.run_dir.path)
    now = by_name(tmp_path, schedule="wsd", arms=[{**LADDER, "tokens": ["8K", "32K", "64K", "128K"]}])
    for name in ("l2w32-32K-seed1", "l1w16-64K-seed1"):
        assert (now[name].trunk, now[name].begin, now[name].config.checkpoint.resume) == (None, 0, "auto")
        assert now[name].ready
    alone = replace(now["l2w32-32K-seed1"].config, checkpoint=again.config.checkpoint)
    assert alone == again.config, "the same run but for where it begins"
    assert all(trial.trunk is None or trial.done for trial in now.values())
    finish(now["l2w32-32K-seed1"], 3.0)
    shares = {row["cell"]: row["own_share"] for row in rows(small(tmp_path, schedule="wsd"), 1)}
    assert shares["l2w32-32K-seed1"] == 1
    assert shares["l4w64-32K-seed1"] == round(1 - before["l4w64-32K-seed1"].begin / before["l4w64-32K-seed1"].steps, 6)


def test_a_cell_waits_for_a_trunk_that_is_trained_again(tmp_path: Path) -> None:
    before = by_name(tmp_path, schedule="wsd")
    finish(before["l2w32-128K-seed1"], 3.0, steps=20)
    branch = by_name(tmp_path, schedule="wsd")["l2w32-32K-seed1"]
    assert branch.trunk is not None
    assert not branch.ready


def test_trunks_come_first(tmp_path: Path) -> None:
    made = small(tmp_path, schedule="wsd")
    order = [trial.trunk is not None for trial in made]
    assert order == sorted(order)
    assert {order[0], order[-1]} == {False, True}


def test_cosine_runs_stand_alone(tmp_path: Path) -> None:
    assert all(trial.trunk is None and trial.config.checkpoint.keep_every == 0 for trial in small(tmp_path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arms": [LADDER, {**LADDER, "name": "again"}]}, "ladder and again both have a cell l1w16-8K-seed1"),
        ({"arms": [LADDER, LADDER]}, "two are called ladder"),
        (
            {"arms": [{**LADDER, "tokens": [8100, 8192]}]},
            "budgets of 8100 and 8192 tokens are the same 32 steps",
        ),
        (
            {"schedule": "wsd", "arms": [LADDER, {**LADDER, "name": "again", "tokens": ["8001"]}]},
            "arms: budgets of 8000 and 8001 tokens are the same 32 steps; leave one out",
        ),
        ({"held_out": ["l4w64-128K"]}, "did you mean l4w64-128K-seed1"),
        ({"budget_flops": "1e9"}, "budget_flops=1e+09: the cells need"),
        ({"head_width": 24}, "width 16 of 1 layers is no multiple of head_width=24"),
        ({"arms": [{**LADDER, "tokens": ["8M"]}]}, "8.0 passes over the 1M of the data; raise epochs_limit=4"),
        ({"overrides": {"optimizer.lr": 1}}, "optimizer.lr is set by the study"),
        ({"arms": [{**LADDER, "unique_tokens": ["1K"]}]}, "repeated data are of kind data"),
        ({"arms": [{**LADDER, "width": 64}]}, "width=64: the kind ladder has its own widths"),
        ({"arms": [{**LADDER, "kind": "depth"}]}, "width=None: the kind depth needs it"),
        ({"arms": [{**LADDER, "layers": [1, 1]}]}, "layers=[1, 1] names one twice"),
        ({"arms": []}, "arms is empty"),
        ({"jobs": 0}, "jobs=0 is too small"),
        ({"stop": {"behind": -0.1}}, "stop.behind=-0.1 must be 0 or more; 0 ends no cell early"),
        ({"stop": {"after": 1.5}}, "stop.after=1.5 is a fraction of the run; write one from 0 to 1"),
        ({"stop": {"after": -0.5}}, "stop.after=-0.5 is a fraction of the run"),
        ({"stop": {"rise": -1}}, "guard.rise"),
        ({"armz": []}, "armz"),
    ],
)
def test_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        small(tmp_path, **changed)
    assert said in str(caught.value)
    assert all("\n" not in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("ladder", "said"),
    [
        ({"layers": [2]}, "1 sizes x 3 budgets that are not held out cannot identify"),
        ({"tokens": ["8K", "32K"]}, "3 sizes x 2 budgets"),
        ({"layers": [2, 3, 4], "tokens": ["8K", "10K", "12K"]}, "less than a decade"),
    ],
)
def test_studies_that_cannot_answer_are_refused(tmp_path: Path, ladder: dict[str, Any], said: str) -> None:
    problems = list(unidentified(small(tmp_path, arms=[{**LADDER, **ladder}])))
    assert len(problems) == 1
    assert said in problems[0]


def test_held_out_cells_identify_nothing(tmp_path: Path) -> None:
    held_out = [f"l4w64-{tokens}-seed1" for tokens in ("8K", "32K", "128K")]
    assert "2 sizes" in next(unidentified(small(tmp_path, held_out=held_out)))


def test_warnings(tmp_path: Path) -> None:
    assert not list(unidentified(small(tmp_path)))
    found = " ".join(warnings(small(tmp_path, arms=[LADDER])))
    assert "no cell has a second seed" in found
    assert "no cell is held out" in found
    assert "spans" not in found
    assert "second seed" not in " ".join(warnings(small(tmp_path)))
    narrow = small(tmp_path, arms=[{**LADDER, "layers": [2, 3, 4]}])
    assert "N spans a factor of" in next(warnings(narrow))


def test_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data are not there yet"):
        make_trials(read(tmp_path), [], None, None)


def test_done_is_told_by_the_run_folder(tmp_path: Path) -> None:
    trial = small(tmp_path)[0]
    assert not trial.done
    finish(trial, 3.0)
    assert trial.done
    assert trial.result == "held-out loss 3.0000"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("scaling/*.yaml")), ids=lambda path: path.stem)
def test_shipped_scaling_studies_have_cells(path: Path) -> None:
    study = load_scaling(str(path))
    found = make_trials(study, ["model.vocab_size=2048"], None, None)
    assert {trial.arm for trial in found} == {arm.name for arm in study.arms}
    assert not list(unidentified(found))


def test_a_study_keeps_its_held_out_rows(tmp_path: Path) -> None:
    """A law is no law of losses of other samples."""
    before, now = (small(tmp_path, overrides={**STUDY["overrides"], "train.eval_batches": n})[0] for n in (2, 0))
    finish(before, 3.0)
    write_atomic(before.run_dir.config, to_yaml(before.config))
    assert not list(before.differences())
    (said,) = now.differences()
    assert "ran with train.eval_batches=2, and the study now says 0; set it back" in said
    assert not now.must_keep("train.evaluations")
    assert PretrainingTrial(config=now.config, name="GPT", seed=1).must_keep("train.eval_batches")


@pytest.mark.parametrize(("event", "ended"), [("diverged", "diverged"), ("dominated", "dominated")])
def test_a_branch_ends_as_a_trunk_that_ended_before_it(tmp_path: Path, event: str, ended: str) -> None:
    """Else it waits for ever, and a rate that lost it wins by its other seeds."""
    before = by_name(tmp_path, schedule="wsd")
    branch, trunk = before["l2w32-32K-seed1"], before["l2w32-128K-seed1"]
    finish(trunk, 9.0, steps=branch.begin - 1)
    assert not branch.done
    trunk.run_dir.add_event(event, step=branch.begin - 1, problem="too high", reason="far behind")
    now = by_name(tmp_path, schedule="wsd")["l2w32-32K-seed1"]
    for found in (branch, now):
        assert (found.trunk is not None, found.done, found.record.outcome) == (True, True, ended)
    assert branch.result.startswith(f"{ended}: its trunk, l2w32-128K-seed1: ")


def test_a_branch_outlives_a_trunk_that_ended_after_it(tmp_path: Path) -> None:
    """Its checkpoint may be gone."""
    before = by_name(tmp_path, schedule="wsd")
    branch, trunk = before["l2w32-32K-seed1"], before["l2w32-128K-seed1"]
    finish(trunk, 9.0, steps=branch.begin + 1)
    trunk.run_dir.add_event("diverged", step=branch.begin + 2, problem="too high")
    trunk.run_dir.checkpoint(branch.begin).mkdir(parents=True)
    assert (branch.ready, branch.done) == (True, False)
    shutil.rmtree(trunk.run_dir.checkpoints)
    now = by_name(tmp_path, schedule="wsd")["l2w32-32K-seed1"]
    assert (now.trunk, now.ready, now.record.outcome) == (None, True, "waiting")


def test_the_folder_of_a_study_is_that_of_the_keys_it_ran_with(tmp_path: Path) -> None:
    read(tmp_path)
    assert study_folder(str(tmp_path / "small.yaml"), ["run.dir=elsewhere"]) == Path("elsewhere/small")
    assert study_folder(str(tmp_path / "small.yaml")) == Path("runs/small")
    assert study_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match=r"run.dir=elsewhere: .* is a folder, whose cells have run; leave it out"):
        study_folder(str(tmp_path), ["run.dir=elsewhere"])
