"""Which learning rate of a point counts as its best."""

from __future__ import annotations

from typing import Any

import pytest

from gpt1_ds.sweep.scaling_sweep import mark_best_rates

DONE, LOST = "done", "diverged"


def best(cells: list[tuple[float, str, float | None]]) -> set[float]:
    """The rates that are marked, of cells of one point: rate, outcome, loss."""
    found: list[dict[str, Any]] = [
        {"n": 1, "d": 2, "u": 2, "learning_rate": rate, "outcome": outcome, "loss": loss}
        for rate, outcome, loss in cells
    ]
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


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_cell_that_has_not_ended_lost_nothing(state: str) -> None:
    assert best([(1e-3, DONE, 4.0), (1e-3, DONE, 4.1), (2e-3, DONE, 3.5), (2e-3, state, None)]) == {2e-3}
