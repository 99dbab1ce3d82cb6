"""The numbers behind the figures of a study's law, read back from what was drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gpt1_ds.report.scaling_axes import NoDataError, SizeColours
from gpt1_ds.report.scaling_law_figures import bootstrap, compute, fit_and_points, isoflop_figure, residuals
from gpt1_ds.report.scaling_results import ScalingResults, read_scaling_results
from gpt1_ds.scaling.laws import compute_optimal
from tests.helpers.scaling_study import predicted
from tests.unit.report.law_study import SHAPED, line, study_on_law


def test_isoflop_minima_are_where_the_law_has_them(tmp_path: Path) -> None:
    flops = (1e17, 1e18)
    best = [float(compute_optimal(SHAPED, c)[0]) for c in flops]
    rows = [(n * 2.0**k, c / 6 / (n * 2.0**k)) for c, n in zip(flops, best, strict=True) for k in (-1, -0.5, 0, 0.5, 1)]
    study = study_on_law(tmp_path, rows)
    drawing = isoflop_figure(study, SizeColours(study))
    stars = [one.get_xdata()[0] for one in drawing.figure.axes[0].lines if one.get_marker() == "*"]
    assert stars == pytest.approx(best, rel=0.05)
    assert "whose compute is equal within 15%" in drawing.text
    assert "have none" not in drawing.text


def test_isoflop_curves_between_token_budgets(study: ScalingResults, tmp_path: Path) -> None:
    drawing = isoflop_figure(study, SizeColours(study))
    assert "read off between the budgets" in drawing.text
    grid = study_on_law(tmp_path, [(n, d) for n in (1e6, 1e7, 1e8) for d in (1e8, 1.1e8)])
    with pytest.raises(NoDataError, match="no compute budget has three sizes"):
        isoflop_figure(grid, SizeColours(grid))


def test_a_minimum_at_the_edge_is_not_marked(tmp_path: Path) -> None:
    study = study_on_law(tmp_path, [(n, 1e22 / 6 / n) for n in (1e6, 1e7, 1e8)])
    drawing = isoflop_figure(study, SizeColours(study))
    assert [one for one in drawing.figure.axes[0].lines if one.get_marker() == "*"] == []
    assert "1 of 1 curves have none within the sizes trained" in drawing.text


def test_curves_pass_where_the_fit_says(study: ScalingResults) -> None:
    left, right = fit_and_points(study, SizeColours(study)).figure.axes
    curve = line(left, "N = 29.4M")
    at = len(curve.get_xdata()) // 2  # type: ignore[attr-defined]
    n = next(cell.n for cell in study.cells if cell.layers == 8)
    d = curve.get_xdata()[at]  # type: ignore[attr-defined]
    assert curve.get_ydata()[at] == pytest.approx(predicted(n, d, d))  # type: ignore[attr-defined]
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        *("D = 16M", "D = 32M", "D = 64M", "D = 128M")
    ]


def test_held_out_cells_stand_beside_their_predictions(study: ScalingResults) -> None:
    (axes,) = compute(study, SizeColours(study)).figure.axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[-3:] == ["held out", "efficient frontier", "predicted, 95 %"]
    ends = [list(one.get_segments()[0][:, 1]) for one in axes.collections if hasattr(one, "get_segments")]
    assert ends == [pytest.approx(point["interval"]) for point in study.fit["held_out"]]


def test_residuals_are_those_of_the_file(study: ScalingResults) -> None:
    drawing = residuals(study, SizeColours(study))
    (axes,) = drawing.figure.axes
    drawn = [one.get_ydata()[0] for one in axes.lines if one.get_marker() in ("o", "s")]
    with open(study.folder / "predictions.csv", newline="") as file:
        told = [float(row["error_percent"]) for row in csv.DictReader(file)]
    assert sorted(drawn) == pytest.approx(sorted(told))
    assert len(drawing.cells) == len(study.predictions) == 45


@pytest.mark.filterwarnings("error")
def test_names_of_cells_leave_the_residuals_their_height(tmp_path: Path) -> None:
    """Names of 70 letters took all of it, and matplotlib warned of axes that "collapsed"."""
    name = "open-lm-1b-swiglu-torch-rpj-original-wsd-width-2048-layers-24-cc-mult-"
    (tmp_path / "results.csv").write_text(f"cell,n,d,loss\n{name}1,1e6,1e8,4\n{name}2,1e7,1e8,3\n")
    (tmp_path / "predictions.csv").write_text(f"cell,predicted\n{name}1,4.1\n{name}2,2.9\n")
    study = read_scaling_results(tmp_path)
    figure = residuals(study, SizeColours(study)).figure
    figure.draw_without_rendering()
    assert figure.axes[0].get_window_extent().height / figure.dpi > 1.2  # inches


def test_the_bootstrap_of_other_forms(tmp_path: Path) -> None:
    same = [0.3, 0.31, 0.29]
    fit = {"form": "gadre", "alpha": 0.3, "beta": 0.3, "E": 1.7, "A": 4.0, "B": 3.0}
    samples = {"alpha": same, "beta": same, "E": [1.7, 1.6, 1.8]}
    study = study_on_law(tmp_path, [(1e6, 1e8)], {**fit, "bootstrap": {"draws": 3, "samples": samples}})
    drawing = bootstrap(study, SizeColours(study))
    assert [axes.get_xlabel()[:5] for axes in drawing.figure.axes] == ["alpha", "beta", "E: ir"], "no cloud on a line"
    study = study_on_law(tmp_path, [(1e6, 1e8)], fit)
    with pytest.raises(NoDataError, match="no bootstrap draws"):
        bootstrap(study, SizeColours(study))
