"""What a rank does alone in a step, and which ranks are slow at it."""

from __future__ import annotations

import random

import pytest

from gpt1_ds.engine.process_groups import Layout
from gpt1_ds.monitoring.stragglers import INTERVALS, STEPS, OwnTime, Window


class Seconds:
    """A clock on which the test says what time it is."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def test_only_what_a_rank_does_alone_counts() -> None:
    clock = Seconds()
    own = OwnTime(clock)
    phases = [
        *[("data", 1.0), ("forward of micro-batch 0", 2.0), ("loss", 0.5), ("backward of micro-batch 0", 4.0)],
        *[("update", 100.0), ("forward of micro-batch 1", 1.0), ("reduction of gradients", 100.0)],
        *[("forward and backward of micro-batch 2", 100.0), ("update", 100.0), ("agreement", 100.0)],
        *[("evaluation", 100.0), ("forward", 100.0), ("loss", 100.0), ("save", 100.0)],
        *[("data", 1.0), ("receiving activations", 100.0), ("forward of micro-batch 0", 2.0), ("sending", 100.0)],
    ]
    for phase, seconds in phases:
        own.begin(phase)
        clock.now += seconds
    own.begin("log")
    assert own.lap() == (2, (8.5 + 3.0) / 2), "the median of two"
    assert own.lap() == (0, 0.0)


def slow(layout: Layout, factors: dict[int, float], intervals: int = 50, steps: int = 10) -> set[int]:
    """The ranks that are called slow in any window, where each takes a tenth of a second give or take a fifth."""
    draw, window, found = random.Random(1), Window(layout), set[int]()
    world = layout.tensor * layout.pipeline * layout.data
    for _ in range(intervals):
        window.add(steps, [0.1 * draw.uniform(0.8, 1.2) * factors.get(rank, 1.0) for rank in range(world)])
        found |= window.stragglers().keys()
    return found


@pytest.mark.parametrize(
    ("layout", "factors", "expected"),
    [
        (Layout(1, 1, 2), {1: 2.0}, {1}),
        (Layout(1, 1, 8), {3: 1.8, 5: 1.8}, {3, 5}),
        (Layout(1, 1, 8), {}, set()),
        (Layout(2, 1, 2), {2: 2.0, 3: 2.0}, {2, 3}),  # a tensor-parallel group
        (Layout(1, 2, 2), {2: 3.0, 3: 3.0}, set()),  # the second stage has more to do
        (Layout(1, 2, 2), {2: 3.0, 3: 6.0}, {3}),
    ],
)
def test_slow_ranks_are_found_among_those_with_the_same_layers(
    layout: Layout, factors: dict[int, float], expected: set[int]
) -> None:
    assert slow(layout, factors) == expected


def test_a_rank_must_be_slow_in_most_of_a_full_window() -> None:
    window, found = Window(Layout(1, 1, 2)), []
    for number in range(2 * INTERVALS):
        window.add(STEPS // INTERVALS, [0.1, 0.5 if number % 5 < 2 else 0.1])
        assert not window.stragglers(), "two of five are not most of them"
    window = Window(Layout(1, 1, 2))
    for _ in range(INTERVALS):
        window.add(STEPS // INTERVALS, [0.1, 0.5])
        found.append(window.stragglers())
    assert found == [*[{}] * (INTERVALS - 1), {1: (0.5, 0.1)}]
    named = []
    for _ in range(INTERVALS):
        window.add(STEPS // INTERVALS, [0.1, 0.1])
        named.append(bool(window.stragglers({1})))
    assert named == [True] * 7 + [False] * 3, "until it is fast in four of five, so that it is not named twice"
