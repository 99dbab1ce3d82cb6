"""Which steps of `train.profile` a run does not come to."""

from __future__ import annotations

import pytest

from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.monitoring.profiler import window_note


@pytest.mark.parametrize(
    ("done", "steps", "told"),
    [
        (0, 8, None),
        (0, 4, None),
        (0, 3, "the run ends with step 3; steps 3 to 3 are profiled"),
        (0, 2, "the run ends with step 2; nothing is profiled"),
        (2, 8, None),
        (3, 8, "the run continues after step 3; steps 4 to 4 are profiled"),
        (4, 8, "the run continues after step 4; nothing is profiled"),
    ],
)
def test_steps_that_the_run_does_not_come_to_are_said(done: int, steps: int, told: str | None) -> None:
    note = window_note(TrainConfig(profile="3:5"), done, steps)
    assert note == (told and f"train.profile=3:5: {told}")


def test_a_run_without_a_window_says_nothing_of_it() -> None:
    assert window_note(TrainConfig(), 0, 8) is None
