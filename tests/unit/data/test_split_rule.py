from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.data.split_rule import SplitRule


def held_out(fraction: float, documents: int) -> list[int]:
    return np.flatnonzero(SplitRule(fraction, documents).held_out(0, documents)).tolist()


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 1 / 3, 0.5, 0.9])
def test_every_prefix_holds_its_exact_share(fraction: float) -> None:
    count = np.cumsum(SplitRule(fraction, 100_000).held_out(0, 100_000))
    assert np.abs(count - fraction * np.arange(1, 100_001)).max() < 1 + 1e-6 * 100_000
    assert count[-1] == pytest.approx(fraction * 100_000, abs=1)


def test_a_tenth_is_every_tenth() -> None:
    assert held_out(0.1, 35) == [9, 19, 29]


def test_at_least_one_of_several() -> None:
    assert held_out(0.01, 2) == [1]
    assert held_out(0.01, 99) == [98]
    assert held_out(0.01, 100) == [99]
    assert held_out(1e-9, 5) == [4]


def test_the_first_document_is_always_for_training() -> None:
    assert held_out(0.99, 3) == [1, 2]


def test_none() -> None:
    assert held_out(0, 1000) == []
    assert SplitRule(0, 1).tail(100, 100) == 0


def test_the_tail_of_the_last_of_few_documents() -> None:
    assert SplitRule(0.1, 1).tail(1001, 1001) == 100
    assert SplitRule(0.5, 1).tail(2, 2) == 1, "at least one token"
    assert SplitRule(0.01, 2).tail(10_002, 7_000) == 100, "not the whole of it"
    assert SplitRule(0.01, 2).tail(10_002, 101) == 0, "it is as long as that"
    assert SplitRule(0.01, 2).tail(10_002, 50) == 0
    assert SplitRule(0.5, 2).tail(10_002, 7_000) == 0, "one of two is a half"


def test_blocks_make_no_difference() -> None:
    rule = SplitRule(0.07, 500)
    blocks = [rule.held_out(first, 50) for first in range(0, 500, 50)]
    assert np.array_equal(np.concatenate(blocks), rule.held_out(0, 500))
