"""Where flat gradients are cut into buckets."""

from __future__ import annotations

import pytest

from gpt1_ds.engine.deepspeed.overlap import cuts


@pytest.mark.parametrize(
    ("sizes", "elements", "wanted"),
    [
        ([4, 4, 4], 100, [(0, 0)]),
        ([4, 4, 4], 4, [(0, 0), (1, 4), (2, 8)]),
        ([4, 4, 4], 5, [(0, 0), (2, 8)]),
        ([100, 1, 1, 50], 50, [(0, 0), (1, 100)]),
        ([], 4, [(0, 0)]),
    ],
)
def test_a_bucket_ends_with_the_parameter_that_fills_it(
    sizes: list[int], elements: int, wanted: list[tuple[int, int]]
) -> None:
    assert cuts(sizes, elements) == wanted


def test_a_parameter_has_a_bucket_of_its_own_where_it_must_wait() -> None:
    assert cuts([4, 4, 4, 4], 100, alone={2}) == [(0, 0), (2, 8), (3, 12)]
    assert cuts([4, 4, 4], 100, alone={0}) == [(0, 0), (1, 4)]
