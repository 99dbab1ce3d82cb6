"""The numbers behind the figures of a scaling study, read back from what was drawn."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from gpt1_ds.report import figures
from gpt1_ds.report.figures import NoDataError, SizeColours, alike, log_axis, power, spread, subplots
from gpt1_ds.report.scaling_figures import (
    bootstrap,
    compute,
    depth,
    fit_and_points,
    isoflop_figure,
    learning_rates,
    once,
    repetition,
    residuals,
    training_curves,
)
from gpt1_ds.report.scaling_results import Cell, ScalingResults, read_scaling_results
from gpt1_ds.scaling.laws import compute_optimal
from tests.helpers.laws import law
from tests.helpers.scaling_study import make_study, predicted

SHAPED = {"alpha": 0.34, "beta": 0.28, "E": 1.7, "A": 400.0, "B": 300.0}


@pytest.fixture(scope="module", autouse=True)
def look() -> None:
    figures.set_up()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ScalingResults:
    return read_scaling_results(make_study(tmp_path_factory.mktemp("figures") / "study"))


def points(
    path: Path, rows: list[tuple[float, float]], fit: dict[str, object] | None = None, extra: str = ""
) -> ScalingResults:
    """A study of cells (N, D) on the law SHAPED."""
    text = "".join(f"{n!r},{d!r},{float(law(n, d, **SHAPED))!r}\n" for n, d in rows)
    (path / "results.csv").write_text("n,d,loss\n" + text + extra)
    if fit is not None:
        write_fit(path, fit)
    return read_scaling_results(path)


def write_fit(path: Path, fit: dict[str, object]) -> None:
    (path / "fit.json").write_text(json.dumps({"format": 1, "bootstrap": {"samples": {}}, **fit}))


def line(axes: object, label: str) -> object:
    (found,) = [one for one in axes.lines if one.get_label() == label]  # type: ignore[attr-defined]
    return found


def test_isoflop_minima_are_where_the_law_has_them(tmp_path: Path) -> None:
    flops = (1e17, 1e18)
    best = [float(compute_optimal(SHAPED, c)[0]) for c in flops]
    rows = [(n * 2.0**k, c / 6 / (n * 2.0**k)) for c, n in zip(flops, best, strict=True) for k in (-1, -0.5, 0, 0.5, 1)]
    study = points(tmp_path, rows)
    drawing = isoflop_figure(study, SizeColours(study))
    stars = [one.get_xdata()[0] for one in drawing.figure.axes[0].lines if one.get_marker() == "*"]
    assert stars == pytest.approx(best, rel=0.05)
    assert "whose compute is equal within 15%" in drawing.text
    assert "have none" not in drawing.text


def test_isoflop_curves_between_token_budgets(study: ScalingResults, tmp_path: Path) -> None:
    drawing = isoflop_figure(study, SizeColours(study))
    assert "read off between the budgets" in drawing.text
    grid = points(tmp_path, [(n, d) for n in (1e6, 1e7, 1e8) for d in (1e8, 1.1e8)])
    with pytest.raises(NoDataError, match="no compute budget has three sizes"):
        isoflop_figure(grid, SizeColours(grid))


def test_a_minimum_at_the_edge_is_not_marked(tmp_path: Path) -> None:
    study = points(tmp_path, [(n, 1e22 / 6 / n) for n in (1e6, 1e7, 1e8)])
    drawing = isoflop_figure(study, SizeColours(study))
    assert [one for one in drawing.figure.axes[0].lines if one.get_marker() == "*"] == []
    assert "1 of 1 curves have none within the sizes trained" in drawing.text


def test_of_a_sweep_the_best_rate_counts_and_of_repeats_the_freshest(study: ScalingResults) -> None:
    kept = once(study)
    assert {cell.kind for cell in kept} <= {"ladder", "data"}
    assert all(cell.epochs == 1 for cell in kept)
    assert {(cell.n, cell.d) for cell in kept} == {(cell.n, cell.d) for cell in study.done if cell.arm == "ladder"}
    rates = {(cell.n, cell.d, cell.learning_rate) for cell in kept}
    assert len(rates) == len({(n, d) for n, d, _ in rates}) == 19
    (large,) = [cell for cell in kept if (cell.layers, cell.d) == (12, 32_000_000)]
    tried = [cell.final_loss for cell in study.done if (cell.n, cell.d) == (large.n, large.d)]
    assert len(tried) == 4
    assert large.final_loss == min(tried)


def test_text_repeated_often_is_not_on_the_curves(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("n,d,u,loss\n1e6,1e8,1e8,4\n1e6,4e8,1e8,3.5\n1e6,8e8,1e8,3.4\n")
    study = read_scaling_results(tmp_path)
    drawing = compute(study, SizeColours(study))
    assert {cell.cell for cell in drawing.cells} == {"row 2", "row 3"}
    assert "more than 4 epochs are left out" in drawing.text


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
    study = points(tmp_path, [(1e6, 1e8)], {**fit, "bootstrap": {"draws": 3, "samples": samples}})
    drawing = bootstrap(study, SizeColours(study))
    assert [axes.get_xlabel()[:5] for axes in drawing.figure.axes] == ["alpha", "beta", "E: ir"], "no cloud on a line"
    study = points(tmp_path, [(1e6, 1e8)], fit)
    with pytest.raises(NoDataError, match="no bootstrap draws"):
        bootstrap(study, SizeColours(study))


def test_excess_is_over_the_largest_u(study: ScalingResults) -> None:
    drawing = repetition(study, SizeColours(study))
    curve = line(drawing.figure.axes[0], "N = 13.8M, D = 64M")
    assert list(curve.get_xdata()) == pytest.approx([1, 2, 4, 8, 16])  # type: ignore[attr-defined]
    n = next(cell.n for cell in study.cells if cell.layers == 6)
    losses = {cell.epochs: cell.final_loss for cell in study.done if (cell.n, cell.d) == (n, 64_000_000)}
    assert curve.get_ydata()[-1] == pytest.approx(100 * (losses[16] / losses[1] - 1))  # type: ignore[attr-defined]


def test_the_repeated_form_is_drawn_beside_its_points(tmp_path: Path) -> None:
    fit = {"form": "repeated", **SHAPED, "R_D": 12.0, "R_N": 5.0}
    rows = "".join(f"1e6,1e8,{3 + 1e6 / u},{u}\n" for u in (1e8, 5e7, 2e7))
    (tmp_path / "results.csv").write_text("n,d,loss,u\n" + rows)
    write_fit(tmp_path, fit)
    study = read_scaling_results(tmp_path)
    curve = line(repetition(study, SizeColours(study)).figure.axes[0], "fit")
    assert curve.get_ydata()[0] == pytest.approx(0)  # type: ignore[attr-defined]
    assert curve.get_ydata()[-1] > 0  # type: ignore[attr-defined]


def test_the_best_rate_is_marked_and_lost_ones_too(study: ScalingResults) -> None:
    (axes,) = learning_rates(study, SizeColours(study)).figure.axes
    stars = [one for one in axes.lines if one.get_marker() == "*"]
    crosses = [one for one in axes.lines if one.get_marker() == "x" and len(one.get_xdata())]
    assert [one.get_xdata()[0] for one in crosses] == [9.6e-3, 9.6e-3]
    assert len(stars) == 3
    for star, layers in zip(stars, (4, 8, 12), strict=True):
        losses: dict[float, list[float]] = {}
        for cell in study.done:
            if (cell.layers, cell.width, cell.d) == (layers, 64 * layers, 32e6):
                losses.setdefault(cell.learning_rate or 0, []).append(cell.final_loss)
        assert len(losses) >= 4
        best = min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))
        assert star.get_xdata()[0] == pytest.approx(best)


@pytest.mark.parametrize(("outcome", "star"), [("dominated", 1e-3), ("waiting", 4e-3)])
def test_no_star_for_a_rate_that_lost_a_seed(outcome: str, star: float, tmp_path: Path) -> None:
    rows = ["1e-3,3.2,done", "1e-3,3.3,done", "2e-3,3.0,done", "2e-3,,diverged", "4e-3,3.1,done"]
    rows.append(f"4e-3,,{outcome}")
    (tmp_path / "results.csv").write_text(
        "n,d,layers,width,learning_rate,loss,outcome\n" + "".join(f"1e6,1e8,2,64,{row}\n" for row in rows)
    )
    study = read_scaling_results(tmp_path)
    (axes,) = learning_rates(study, SizeColours(study)).figure.axes
    assert [one.get_xdata()[0] for one in axes.lines if one.get_marker() == "*"] == [pytest.approx(star)]


def test_iso_n_curves_join_equal_sizes(study: ScalingResults) -> None:
    ladder, shaped = depth(study, SizeColours(study)).figure.axes
    assert list(line(ladder, "D = 128M").get_xdata()) == pytest.approx([4, 6, 8, 12])  # type: ignore[attr-defined]
    (iso,) = [one for one in shaped.lines if str(one.get_label()).startswith("N ≈")]
    assert list(iso.get_xdata()) == pytest.approx([2, 4, 8, 16])
    assert list(line(shaped, "width 512").get_xdata()) == pytest.approx([2, 4, 8, 12])  # type: ignore[attr-defined]


def test_every_cell_that_ran_has_its_curve(study: ScalingResults) -> None:
    drawing = training_curves(study, SizeColours(study))
    assert {cell.cell for cell in drawing.cells} == {cell.cell for cell in study.cells if cell.outcome != "waiting"}
    assert [axes.get_title() for axes in drawing.figure.axes] == [
        *("ladder", "seeds", "rates", "repeats", "shape", "depth")
    ]
    rates = drawing.figure.axes[2]
    marks = [one for one in rates.lines if one.get_marker() == "x"]
    assert len(marks) == 2
    red = [one for one in rates.lines if one.get_color() == "crimson" and one.get_marker() == "None"]
    assert [list(mark.get_xydata()[0]) for mark in marks] == [list(one.get_xydata()[-1]) for one in red]


def test_a_cell_that_diverged_does_not_hide_the_curves_of_the_others(tmp_path: Path) -> None:
    text = "cell,arm,n,d,loss,outcome,run\n"
    losses = {"good": (8.0, 6.0, 5.0), "far": (8.0, 7.0, 9000.0), "near": (8.0, 6.0, 8.1)}
    for cell, values in losses.items():
        run, outcome = tmp_path / cell, "done" if cell == "good" else "diverged"
        run.mkdir()
        other = {"kind": "eval", "perplexity": 1.0, "bits_per_byte": 1.0}
        lines = [{**other, "step": n, "tokens": 100 * n, "loss": loss} for n, loss in enumerate(values, 1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text += f"{cell},ladder,1e6,300,{values[-1] if outcome == 'done' else ''},{outcome},{run}\n"
    (tmp_path / "results.csv").write_text(text)
    study = read_scaling_results(tmp_path)
    drawing = training_curves(study, SizeColours(study))
    (axes,) = drawing.figure.axes
    low, top = axes.get_ylim()
    assert (low, top) == pytest.approx((5 / 1.03, 8 * 1.03))
    marks = [list(one.get_xydata()[0]) for one in axes.lines if one.get_marker() == "x"]
    assert sorted(marks) == [[300, 8.1], [300, pytest.approx(top)]]
    assert drawing.text.endswith("(at the top edge: above it): diverged.")


def test_a_size_has_one_colour_everywhere(study: ScalingResults) -> None:
    sizes = SizeColours(study)
    colours = {sizes(cell.n) for cell in study.cells if cell.kind == "ladder"}
    assert len(colours) == 5
    assert sizes(2.94e7) == sizes(2.945e7)


@pytest.mark.parametrize(
    ("low", "high", "most"), [(3.9, 4.2, 8), (3, 7, 9), (1e6, 1.2e8, 9), (1e15, 1e22, 12), (2e-4, 1e-2, 9)]
)
def test_an_axis_has_a_few_round_ticks(low: float, high: float, most: int) -> None:
    figure, (axes,) = subplots(1)
    axes.plot([low, high], [1, 2])
    log_axis(axes.xaxis)
    figure.canvas.draw()
    left, right = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if left <= tick <= right]
    assert 3 <= len(ticks) <= most
    assert all(float(f"{tick:.3g}") == pytest.approx(tick, rel=1e-9) for tick in ticks)


def test_words_for_compute() -> None:
    assert [power(value) for value in (1e15, 2.5e16, 9.99e9, 1.0, 1e-3)] == [
        "10¹⁵",
        "2.5·10¹⁶",
        "9.99·10⁹",
        "10⁰",
        "10⁻³",
    ]


def test_groups_and_spread() -> None:
    cells = [Cell(str(d), 1.0, d, d, 1.0, 2.0, "done") for d in (100.0, 102.0, 110.0, 200.0)]
    found = alike(cells, lambda cell: cell.d)
    assert [[cell.d for cell in some] for _, some in found] == [[100, 102], [110], [200]]
    assert found[0][0] == pytest.approx(math.sqrt(100 * 102))
    assert spread(range(100), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 4) == [1, 2]
