"""The time that is left of a run, as its log says it."""

from __future__ import annotations

import pytest

from gpt1_ds.training.step_log import TimeLeft

SLOW, STEP, EVALUATION = 60.0, 1.0, 5.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("gpt1_ds.training.step_log.time.perf_counter", lambda: now[0])
    return now


def run(
    left: TimeLeft, clock: list[float], first: int, last: int, every: int, seconds: float = STEP
) -> list[float | None]:
    """What is said after every `every`-th step; one evaluation in ten steps."""
    said = []
    for step in range(first, last + 1):
        clock[0] += SLOW if step == first else seconds
        left.count(step)
        if step == first or step % every == 0:
            said.append(left.seconds(step))
        if step % 10 == 0:
            clock[0] += EVALUATION
    return said


def test_the_first_steps_are_left_out(clock: list[float]) -> None:
    first, *later = run(TimeLeft(1000), clock, 1, 40, every=20)
    assert first is None, "one step that compiles is no measure"
    assert later == pytest.approx([980 * (17 * STEP + EVALUATION) / 17, 960 * (37 * STEP + 3 * EVALUATION) / 37])


def test_a_run_that_is_resumed_measures_anew(clock: list[float]) -> None:
    assert run(TimeLeft(1000), clock, 501, 509, every=1)[:3] == [None] * 3
    assert run(TimeLeft(2), clock, 1, 2, every=1) == [None, None], "a short run says nothing"


def test_the_last_intervals_decide(clock: list[float]) -> None:
    left = TimeLeft(10_000)
    run(left, clock, 1, 100, every=5)
    clock[0] -= SLOW - 3 * STEP  # the first of these steps is like the others
    *_, said = run(left, clock, 101, 400, every=5, seconds=3 * STEP)
    assert said == pytest.approx(9600 * (50 * 3 * STEP + 5 * EVALUATION) / 50)


def test_nothing_is_left_at_the_end(clock: list[float]) -> None:
    assert run(TimeLeft(40), clock, 1, 40, every=20)[-1] == 0
