"""Which learning rate of a point counts as its best, and whose losses a table may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import to_yaml
from gpt1_ds.plan.machine import find_machine
from gpt1_ds.sweep.scaling_collect import collect, mark_best_rates
from gpt1_ds.sweep.scaling_sweep import ScalingSweep
from tests.helpers.scaling_trials import STUDY, finish, read, small

DONE, LOST = "done", "diverged"


def best(cells: list[tuple[float, str, float | None]]) -> set[float]:
    """The rates that are marked, of cells of one point: rate, outcome, loss, of seeds 1, 2, ... at each rate."""
    found: list[dict[str, Any]] = []
    for rate, outcome, loss in cells:
        seed = 1 + sum(row["learning_rate"] == rate for row in found)
        cell = {"n": 1, "d": 2, "u": 2, "learning_rate": rate, "seed": seed, "outcome": outcome, "loss": loss}
        found.append(cell)
    mark_best_rates(found)
    return {row["learning_rate"] for row in found if row["best_rate"]}


@pytest.mark.parametrize("lost", [LOST, "dominated", "failed"])
def test_a_rate_that_lost_a_seed_does_not_win_by_the_others(lost: str) -> None:
    whole = [(1e-3, DONE, 3.2), (1e-3, DONE, 3.3), (1e-3, DONE, 3.4)]
    lucky: list[tuple[float, str, float | None]] = [(2e-3, DONE, 3.0), (2e-3, lost, None), (2e-3, DONE, 3.1)]
    assert best([*whole, *lucky]) == {1e-3}
    assert best([*whole, *lucky, (4e-3, DONE, 3.1)]) == {4e-3}
    assert best([(2e-3, DONE, 3.0), (2e-3, lost, None), (1e-3, lost, None)]) == {2e-3}
    assert best([*lucky, (4e-3, DONE, 2.0), (4e-3, lost, None), (4e-3, lost, None)]) == {2e-3}
    assert best([(1e-3, lost, None), (2e-3, lost, None)]) == {1e-3, 2e-3}, "of what nothing is known all may be fitted"


def test_rates_are_compared_by_the_seeds_that_they_share() -> None:
    """An arm of rates with one seed beside an arm that repeats one of the rates: a lucky seed is so at all rates."""
    repeated = [(1e-3, DONE, 3.2), (1e-3, DONE, 3.4), (1e-3, DONE, 3.5)]
    assert best([*repeated, (2e-3, DONE, 3.3), (4e-3, DONE, 3.25)]) == {1e-3}
    assert best([*repeated, (2e-3, DONE, 3.1), (4e-3, DONE, 3.15)]) == {2e-3}
    assert best([(5e-4, DONE, 3.3), *repeated, (2e-3, DONE, 3.15)]) == {2e-3}


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_cell_that_has_not_ended_lost_nothing(state: str) -> None:
    assert best([(1e-3, DONE, 4.0), (1e-3, DONE, 4.1), (2e-3, DONE, 3.5), (2e-3, state, None)]) == {2e-3}


def test_another_study_of_the_name_keeps_its_results(tmp_path: Path) -> None:
    """They were replaced by a table of cells that nobody had run."""
    trials = small(tmp_path)
    ran, other = (ScalingSweep(read(tmp_path), some, find_machine("cpu")) for some in (trials[:1], trials[1:]))
    finish(trials[0], 3.0)
    trials[0].run_dir.config.write_text(to_yaml(trials[0].config))
    collect(ran)
    before = (ran.folder / "results.csv").read_text()
    for act in (collect, ScalingSweep.check_configurations):
        with pytest.raises(ConfigError, match=r"results.csv: holds the results of another study of this name"):
            act(other)
    assert (ran.folder / "results.csv").read_text() == before


def test_a_cell_that_was_taken_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`collect` replaced the table by one without its row, and said nothing."""
    trials = small(tmp_path)
    for trial in trials[:2]:
        finish(trial, 3.0)
        trial.run_dir.config.write_text(to_yaml(trial.config))
    collect(ScalingSweep(read(tmp_path), trials, find_machine("cpu")))
    assert capsys.readouterr().err == ""
    collect(ScalingSweep(read(tmp_path), trials[1:], find_machine("cpu")))
    assert f"its tables leave out 1 run, of which this study has no cell: {trials[0]}; add" in capsys.readouterr().err


def test_a_study_that_was_killed_before_its_first_cell_runs_again(tmp_path: Path) -> None:
    """Its table of cells that wait was taken for the results of another study."""
    sweep = ScalingSweep(read(tmp_path), small(tmp_path), find_machine("cpu"))
    sweep.folder.mkdir(parents=True)
    collect(sweep)
    sweep.check_configurations()


def test_a_table_has_no_loss_beside_numbers_of_another_configuration(tmp_path: Path) -> None:
    """`collect` and `status` with a changed study or other keys told N, D or rates that its cells did not run with."""

    def sweep(**changed: Any) -> ScalingSweep:
        study = read(tmp_path, **changed)
        return ScalingSweep(study, small(tmp_path, **changed), find_machine("cpu"))

    ran = sweep()
    trial = ran.trials[0]
    finish(trial, 3.0)
    trial.run_dir.config.write_text(to_yaml(trial.config))
    assert collect(ran)[0]["loss"] == 3.0
    assert any(trial.name in line and "3.0000" in line for line in ran.status())
    before = (ran.folder / "results.csv").read_text()
    for changed in ({"learning_rate": {"value": 1e-2}}, {"overrides": {**STUDY["overrides"], "model.ffn": 256}}):
        with pytest.raises(ConfigError, match=rf"{trial.name} ran with .*, and the study now says .*; set it back"):
            collect(sweep(**changed))
        with pytest.raises(ConfigError, match=rf"{trial.name} ran with .*, and the study now says .*; set it back"):
            list(sweep(**changed).status())
    assert (ran.folder / "results.csv").read_text() == before
