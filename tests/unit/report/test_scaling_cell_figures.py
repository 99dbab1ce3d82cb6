"""The numbers behind the figures of a study's cells, read back from what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.report.scaling_axes import SizeColours
from gpt1_ds.report.scaling_cell_figures import depth, learning_rates, repetition, training_curves
from gpt1_ds.report.scaling_results import ScalingResults, read_scaling_results
from tests.unit.report.law_study import SHAPED, line, write_fit


def test_iso_n_curves_join_equal_sizes(study: ScalingResults) -> None:
    ladder, shaped = depth(study, SizeColours(study)).figure.axes
    assert list(line(ladder, "D = 128M").get_xdata()) == pytest.approx([4, 6, 8, 12])  # type: ignore[attr-defined]
    (iso,) = [one for one in shaped.lines if str(one.get_label()).startswith("N ≈")]
    assert list(iso.get_xdata()) == pytest.approx([2, 4, 8, 16])
    assert list(line(shaped, "width 512").get_xdata()) == pytest.approx([2, 4, 8, 12])  # type: ignore[attr-defined]


def test_excess_is_over_the_largest_u(study: ScalingResults) -> None:
    drawing = repetition(study, SizeColours(study))
    curve = line(drawing.figure.axes[0], "N = 13.8M, D = 64M")
    assert list(curve.get_xdata()) == pytest.approx([1, 2, 4, 8, 16])  # type: ignore[attr-defined]
    n = next(cell.n for cell in study.cells if cell.layers == 6)
    losses = {cell.epochs: cell.final_loss for cell in study.done if (cell.n, cell.d) == (n, 64_000_000)}
    assert curve.get_ydata()[-1] == pytest.approx(100 * (losses[16] / losses[1] - 1))  # type: ignore[attr-defined]


def test_the_repeated_form_is_drawn_beside_its_study_on_law(tmp_path: Path) -> None:
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
