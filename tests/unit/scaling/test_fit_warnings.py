"""Fits that are refused, and each warning where the points cannot say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.scaling import checks
from gpt1_ds.scaling.fitting import fit_file
from gpt1_ds.scaling.points import read_points
from gpt1_ds.scaling.solve import Solution
from tests.helpers.laws import TRUTH, grid, law, rows_of, truth_csv, write_csv


def fitted(folder: Path, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return fit_file(write_csv(folder / "points.csv", rows), **{"draws": 40, **options})[0]


def rows_on(n: Any, d: Any, noise: float = 0.002, **more: Any) -> list[dict[str, Any]]:
    n, d = (axis.ravel() for axis in np.meshgrid(n, d))
    loss = law(n, d, **TRUTH) * np.exp(noise * np.random.default_rng(3).standard_normal(len(n)))
    return rows_of(n, d, loss, **more)


def assert_warned(record: dict[str, Any], words: str) -> None:
    assert any(words in line for line in record["warnings"]), record["warnings"]
    assert not any("\n" in line for line in record["warnings"])


def test_a_good_grid_has_no_warning(tmp_path: Path) -> None:
    record, rows = fit_file(truth_csv(tmp_path, 6, 6, 0.001), draws=200)
    assert record["warnings"] == []
    assert len(rows) == 36
    assert record["points"] == 35


def test_one_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"points.csv: form=chinchilla: all points have one N.*--form power_d"):
        fitted(tmp_path, rows_on([1e8], np.geomspace(1e9, 1e11, 8)))
    record = fitted(tmp_path, rows_on([1e8], np.geomspace(1e9, 1e11, 8)), form="power_d")
    assert record["beta"] == pytest.approx(TRUTH["beta"], abs=0.1)
    assert "alpha" not in record


def test_sizes_that_are_alike_are_one(tmp_path: Path) -> None:
    """N counted a little differently in every run: alpha cannot be known."""
    n, d = 1e7 * (1 + 1e-9 * np.arange(12)), np.tile(np.geomspace(2e8, 2e10, 4), 3)
    with pytest.raises(DataError, match=r"all points have one N \(to 1 %\), so alpha and A are unknown"):
        fitted(tmp_path, rows_of(n, d, law(n, d, **TRUTH)))
    with pytest.raises(DataError, match=r"all points have one D \(to 1 %\), so beta and B are unknown"):
        fitted(tmp_path, rows_of(d, 1e3 * n, law(d, 1e3 * n, **TRUTH)))


def test_points_of_which_none_is_left_are_refused_as_such(tmp_path: Path) -> None:
    """They were told to have "one N"."""
    rows = [{**row, "held_out": 1} for row in rows_on(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4))]
    rows[:2] = [{**row, "held_out": 0, "u": row["d"] / 5} for row in rows[:2]]
    rows[2:] = [{**row, "u": row["d"]} for row in rows[2:]]
    told = r"points.csv: no row is left to judge the law by: 14 held out, 2 more than 4 epochs .*; set held_out=0 for"
    with pytest.raises(DataError, match=told):
        fitted(tmp_path, rows)


def test_points_that_stand_twice_are_told(tmp_path: Path) -> None:
    """They make intervals narrower as runs of their own would; another seed with the same loss is such a run."""
    rows = [{**row, "seed": 1} for row in rows_on(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4))]
    again = [{**row, "seed": 2} for row in rows]
    twice, seeds = (
        list(checks.range_warnings("chinchilla", read_points(write_csv(tmp_path / "points.csv", [*rows, *more]))))
        for more in (rows, again)
    )
    assert [line for line in twice if line not in seeds] == [
        "16 of 32 points repeat N, D, U, seed and loss of another (like row 18); remove those that are no runs of "
        "their own, because they make every interval narrower"
    ]


def test_one_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all points have one D.*--form power_n"):
        fitted(tmp_path, rows_on(np.geomspace(1e7, 1e9, 8), [1e10]))


def test_fewer_points_than_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="4 points to fit for 5 parameters; train 6 or more"):
        fitted(tmp_path, rows_on([1e7, 1e8], [1e9, 1e10]))


def test_repeated_without_repetition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no point has d > u.*--form chinchilla"):
        fitted(tmp_path, rows_on([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]), form="repeated")


def test_few_sizes(tmp_path: Path) -> None:
    record = fitted(tmp_path, rows_on([1e7, 1e8], np.geomspace(1e9, 1e11, 6)))
    assert_warned(record, "12 points of 2 N and 6 D: fewer than 3 N x 3 D")


def test_tokens_within_a_decade(tmp_path: Path) -> None:
    record = fitted(tmp_path, rows_on(np.geomspace(1e7, 1e9, 4), np.geomspace(1e10, 4e10, 4)))
    assert_warned(record, "D spans 4x, less than a decade")


def test_ratio_within_a_decade(tmp_path: Path) -> None:
    n = np.repeat(np.geomspace(1e7, 1e9, 4), 3)
    d = n * np.tile([15.0, 20.0, 30.0], 4)
    record = fitted(tmp_path, rows_of(n, d, law(n, d, **TRUTH)))
    assert_warned(record, "D/N spans 2x, less than a decade")


def test_repeated_tokens_counted_as_new(tmp_path: Path) -> None:
    rows = rows_on(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 5), u=5e10)
    assert_warned(fitted(tmp_path, rows), "tokens are repeated up to 2 times")


def test_a_power_law_whose_other_axis_moves(tmp_path: Path) -> None:
    rows = rows_on(np.geomspace(1e7, 1e9, 4), [1e9, 2e9])
    assert_warned(fitted(tmp_path, rows, form="power_n"), "D spans 2x, and form=power_n takes it for constant")


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_what_the_points_do_not_tell_has_wide_intervals(noise: float, tmp_path: Path) -> None:
    """Two sizes fit every alpha."""
    record = fitted(tmp_path, rows_on([1e7, 1e8], np.geomspace(1e9, 1e11, 6), noise), draws=200)
    assert record["condition"] > 1e4
    assert_warned(record, "the points do not tell alpha")
    low, high = record["intervals"]["alpha"]
    assert low < 0.05
    assert high > 1
    assert record["intervals"]["a"][1] - record["intervals"]["a"][0] > 0.3
    assert record["intervals"]["beta"][1] - record["intervals"]["beta"][0] < 0.2, "which they tell"


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_a_ratio_that_is_the_same_everywhere_is_refused(power: float, tmp_path: Path) -> None:
    n = np.geomspace(1e7, 1e9, 12)
    d = 20 * n**power * 1e8 ** (1 - power)
    with pytest.raises(DataError, match=r"N and D move together \(D is within 1x of one power of N\)"):
        fitted(tmp_path, rows_of(n, d, law(n, d, **TRUTH)))


def test_no_interval_is_without_width(tmp_path: Path) -> None:
    """Points exactly on a law: losses are known to a few digits all the same."""
    n, d = grid(4, 4)
    record = fitted(tmp_path, rows_of(n, d, law(n, d, **TRUTH)), draws=200)
    assert record["condition"] < 100
    for name in ("alpha", "beta", "E", "a", "b"):
        low, high = record["intervals"][name]
        assert 1e-4 < high - low < 0.02, name
        assert low <= record[name] <= high


def test_noise_on_few_points_is_no_outlier(tmp_path: Path) -> None:
    """The law bends to more than half of nine points, whose distances say nothing of the noise."""
    n, d = np.geomspace(1e7, 1e9, 3), np.geomspace(1e9, 1e11, 3)
    n, d = (axis.ravel() for axis in np.meshgrid(n, d))
    for seed in range(1, 7):
        loss = law(n, d, **TRUTH) * np.exp(0.003 * np.random.default_rng(seed).standard_normal(len(n)))
        record = fitted(tmp_path, rows_of(n, d, loss), draws=0)
        assert not any("robust standard deviations" in line for line in record["warnings"])
    loss[4] *= 1.1
    assert_warned(fitted(tmp_path, rows_of(n, d, loss), draws=0), "1 of 9 points lie more than 6 robust")


def test_outliers_are_named_with_what_they_move(tmp_path: Path) -> None:
    rows = rows_on(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6))
    clean = fitted(tmp_path, rows)
    for number in (0, 1, 2):
        rows[number]["loss"] *= 1.15
    record = fitted(tmp_path, rows)
    (line,) = (line for line in record["warnings"] if "robust standard deviations" in line)
    assert line.startswith("3 of 36 points lie more than 6 robust standard deviations off: row 2, row 3, row 4;")
    without = {name: float(value) for name, value in re.findall(r"(alpha|beta) [\d.]+ -> ([\d.]+)", line)}
    assert without == pytest.approx({name: clean[name] for name in ("alpha", "beta")}, abs=0.01)


def test_a_floor_that_hangs_on_single_runs(tmp_path: Path) -> None:
    record = fitted(tmp_path, rows_on(np.geomspace(1e7, 4e7, 3), np.geomspace(1e9, 1e10, 3), noise=0.01), draws=100)
    assert_warned(record, "more than E/2")
    assert_warned(record, "when one run (row ")


def test_a_floor_at_its_bound(tmp_path: Path) -> None:
    n, d = grid(4, 4)
    record = fitted(tmp_path, rows_of(n, d, law(n, d, **{**TRUTH, "E": -0.3})))
    assert record["E"] == 0
    assert record["at_bounds"] == ["E"]
    assert_warned(record, "at a bound: E")
    assert_warned(record, "implausible E = 0: it lies outside of 0 to the lowest loss")
    assert not any("E moves" in line for line in record["warnings"]), "from 0.000 to 0.000"


def test_a_floor_of_zero_is_no_measure_of_what_moves_it(tmp_path: Path) -> None:
    """Widths and moves were given in parts of E: 2899999997100.00 E wide, 264130604815112 %."""
    n, d = [1e6, 1e6, 1e7, 1e7, 1e7, 1e8, 1e8], [1e7, 1e8, 1e7, 1e8, 1e9, 1e8, 1e9]
    record = fitted(tmp_path, rows_of(n, d, [4.1, 3.9, 3.8, 3.4, 3.2, 3.2, 2.9]), draws=50)
    assert_warned(record, "implausible E = 0.000: its 95 % interval 0.000 to 2.900 is 2.900 nats wide (more than E/2)")
    assert_warned(record, "E moves by more than 20 %, from 0.000 to 2.")


def test_a_target_far_away_and_missed(tmp_path: Path) -> None:
    rows = rows_on(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4), held_out=0)
    rows.append({"n": 2e10, "d": 1e10, "loss": 3.0, "held_out": 1})
    record = fitted(tmp_path, rows)
    assert_warned(record, "row 18: N = 20B is 20x outside the fitted range (10M to 1B)")
    assert_warned(record, "is beyond the fit's noise")
    assert not any("D = 10B" in line for line in record["warnings"])


def test_starts_that_disagree(tmp_path: Path) -> None:
    points = read_points(truth_csv(tmp_path))
    good = Solution({"E": 1.7}, {}, 1.0, starts=(1.0, 1.0, 2.0), agreeing=2)
    lines = list(checks.solution_warnings("chinchilla", points, good, {}))
    assert lines == ["only 2 of 3 starts reached the best objective: there may be a better one"]
    agreed = dataclasses.replace(good, agreeing=3)
    assert not list(checks.solution_warnings("chinchilla", points, agreed, {}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "kaplan"}, "--form kaplan: is none of chinchilla, gadre"),
        ({"loss": "mse"}, "--loss mse: is neither huber nor l2"),
        ({"draws": 5}, "--draws 5: too few"),
        ({"at": {"E": 1.0}}, "--at: is for --form repeated"),
        ({"form": "repeated", "at": {"E": 1.0}}, "--at E: not a set of parameters; give alpha"),
        ({"form": "repeated", "at": dict.fromkeys(["alpha", "beta", "E", "A", "B"], -1.0)}, "--at alpha=-1.0: is not"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fit_file(truth_csv(tmp_path), **options)
    assert words in str(refused.value)
