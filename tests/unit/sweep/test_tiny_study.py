"""The shipped study in miniature: its cells fix a law where there is one."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.report.scaling_tables import ABOUT_E
from gpt1_ds.scaling.fitting import fit_file
from gpt1_ds.sweep.scaling_study import load_scaling
from gpt1_ds.sweep.scaling_sweep import unidentified, warnings
from gpt1_ds.sweep.scaling_trials import ScalingTrial, make_trials

NOISE = 0.003  # of the loss between seeds
DATA_TOKENS = 1_084_536  # of the corpus inside Python 3.11, with 512 pieces


@pytest.fixture(scope="module")
def trials() -> tuple[ScalingTrial, ...]:
    return make_trials(load_scaling("scaling/tiny_cpu"), [], None, DATA_TOKENS)


def test_the_plan_has_nothing_to_warn_of(trials: tuple[ScalingTrial, ...]) -> None:
    assert list(unidentified(trials)) == []
    assert list(warnings(trials)) == []
    fitted = [trial for trial in trials if not trial.held_out]
    assert max(trial.parameters for trial in trials) / min(trial.parameters for trial in trials) > 10**1.15
    assert max(trial.tokens for trial in fitted) / min(trial.tokens for trial in fitted) > 10
    assert all(trial.epochs <= 1 for trial in trials), "no text is repeated"


@pytest.mark.parametrize(("E", "alpha", "beta"), [(1.5, 0.35, 0.3), (1.0, 0.3, 0.2), (2.0, 0.4, 0.45)])
def test_a_known_law_is_found_again(
    E: float, alpha: float, beta: float, trials: tuple[ScalingTrial, ...], tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    with (tmp_path / "points.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cell", "n", "d", "loss", "held_out", "seed"])
        for trial in trials:
            n, d = trial.parameters, trial.tokens
            loss = E + 0.45 * (n / 26_100) ** -alpha + (3.6 - E) * (d / 210_432) ** -beta
            loss *= 1 + NOISE * draw.standard_normal()
            rows.writerow([trial.name, n, d, loss, int(trial.held_out), trial.config.run.seed])
    record, _ = fit_file(tmp_path / "points.csv", draws=200)
    # an irreducible loss that lies far below the points is given as a bound
    assert [line for line in record["warnings"] if not line.startswith(ABOUT_E)] == []
    assert record["alpha"] == pytest.approx(alpha, abs=0.1)
    assert record["beta"] == pytest.approx(beta, abs=0.03)
    assert record["E"] == pytest.approx(E, abs=0.2)
    assert all(abs(row["error_percent"]) < 0.6 for row in record["held_out"])
