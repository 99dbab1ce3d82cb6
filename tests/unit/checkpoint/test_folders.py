"""Which checkpoints of a run are taken when only some of them are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.checkpoint.folders import log_spaced


def steps(given: list[int], points: int) -> list[int]:
    folders = [Path(f"run/checkpoints/step-{step:08d}") for step in given]
    return [int(path.name.removeprefix("step-")) for path in log_spaced(folders, points)]


@pytest.mark.parametrize(
    ("given", "points", "wanted"),
    [
        (list(range(100, 10_001, 100)), 3, [100, 1000, 10_000]),
        (list(range(100, 10_001, 100)), 5, [100, 300, 1000, 3200, 10_000]),
        ([1, 10, 100], 9, [1, 10, 100]),
        ([1, 10, 100], 1, [100]),
        ([7], 4, [7]),
        ([0, 100], 2, [0, 100]),
    ],
)
def test_even_on_a_log_scale(given: list[int], points: int, wanted: list[int]) -> None:
    assert steps(given, points) == wanted
