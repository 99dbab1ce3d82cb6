"""What the figures of a scaling study share: which cells, in which colours, on which axes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpt1_ds.report.figures import log_axis
from gpt1_ds.report.scaling_axes import SizeColours, evenly, groups_alike, law_cells, power, subplots
from gpt1_ds.report.scaling_law_figures import compute
from gpt1_ds.report.scaling_results import Cell, ScalingResults, read_scaling_results


def test_of_a_sweep_the_best_rate_counts_and_of_repeats_the_freshest(study: ScalingResults) -> None:
    kept = law_cells(study)
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


def test_groups_and_even_choices() -> None:
    cells = [Cell(str(d), 1.0, d, d, 1.0, 2.0, "done") for d in (100.0, 102.0, 110.0, 200.0)]
    found = groups_alike(cells, lambda cell: cell.d)
    assert [[cell.d for cell in some] for _, some in found] == [[100, 102], [110], [200]]
    assert found[0][0] == pytest.approx(math.sqrt(100 * 102))
    assert evenly(range(100), 4) == [0, 33, 66, 99]
    assert evenly([1, 2], 4) == [1, 2]
