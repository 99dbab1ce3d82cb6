from __future__ import annotations

import numpy as np

from gpt1_ds.data.draws import Draws


def test_answers_depend_on_key_position_and_question_alone() -> None:
    first, turned = (Draws.of(np.array(positions), 3) for positions in ([7, 9], [9, 7]))
    assert first.bits(1).tolist() == turned.bits(1)[::-1].tolist()
    assert first.bits(1).tolist() != first.bits(2).tolist()
    assert first.bits(1).tolist() != Draws.of(np.array([7, 9]), 4).bits(1).tolist()


def test_distributions() -> None:
    draws = Draws.of(np.arange(10_000), 3)
    numbers, coins = draws.below(1, np.full(10_000, 5)), draws.heads(2, np.full(10_000, 100))
    assert np.abs(np.bincount(numbers, minlength=5) / 10_000 - 0.2).max() < 0.02
    assert abs(draws.chance(3, 0.1).mean() - 0.1) < 0.01
    assert abs(coins.mean() - 50) < 0.2
    assert abs(coins.std() - 5) < 0.2
    assert draws.heads(2, np.zeros(10_000, dtype=np.int64)).max() == 0
