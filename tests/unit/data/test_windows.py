"""The order of data: a permutation, random access, exact shares, nothing that depends on ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_ds.data.windows import WindowOrder, blend, fingerprint, permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 1000, 4097])
def test_permute_is_a_permutation(size: int) -> None:
    everything = np.arange(size)
    image = permute(everything, size, key=123)
    assert sorted(image) == list(everything)
    assert np.array_equal(permute(everything[::-1].copy(), size, key=123), image[::-1]), "element by element"
    if size > 16:
        assert not np.array_equal(image, permute(everything, size, key=124))


def test_permute_looks_random() -> None:
    size = 1 << 16
    image = permute(np.arange(size), size, key=5).astype(float)
    assert abs(np.corrcoef(np.arange(size), image)[0, 1]) < 0.02
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02
    assert np.mean(np.diff(image) == 1) < 1e-3


def test_permute_far_out_needs_no_memory() -> None:
    size = 10**12
    index = np.array([0, 1, size // 2, size - 1])
    image = permute(index, size, key=9)
    assert ((image >= 0) & (image < size)).all()
    assert len(set(image)) == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=5), st.integers(0, 10**12))
def test_blend_keeps_shares_and_leaves_no_gaps(weights: list[float], start: int) -> None:
    source, number = blend(np.arange(start, start + 300), weights)
    for at in range(len(weights)):
        mine = number[source == at]
        assert np.array_equal(mine, np.arange(mine[0], mine[0] + len(mine)) if len(mine) else mine)
    source, _ = blend(np.arange(2000), weights)
    for at, weight in enumerate(weights):
        assert abs((source == at).sum() - 2000 * weight / sum(weights)) < len(weights) + 2


def test_every_pass_visits_every_window_once_in_another_order() -> None:
    order = WindowOrder(windows=100, used=100, data_hash="x", seed=1)
    first, second = order.at(np.arange(100)), order.at(np.arange(100, 200))
    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)
    across = order.at(np.arange(90, 110))
    assert np.array_equal(across, np.concatenate([first[90:], second[:10]]))
    assert not np.array_equal(WindowOrder(100, 100, "x", 2).at(np.arange(100)), first)
    assert not np.array_equal(WindowOrder(100, 100, "y", 1).at(np.arange(100)), first)


def test_moving_windows_begin_elsewhere_in_every_pass_and_read_nothing_twice() -> None:
    tokens, context = 1007, 10
    order = WindowOrder(windows=100, used=100, data_hash="x", seed=1, moving=True)
    passes = [order.starts(np.arange(100 * n, 100 * n + 100), context, tokens) for n in range(20)]
    for starts in passes:
        read = (starts[:, None] + np.arange(context)) % tokens
        assert len(np.unique(read)) == 100 * context
    grids = {int(starts[0] % context) for starts in passes}
    assert len(grids) > 5, "the cuts lie elsewhere"
    across = order.starts(np.arange(90, 110), context, tokens)
    assert np.array_equal(across, np.concatenate([passes[0][90:], passes[1][:10]])), "wherever a run is interrupted"
    other = WindowOrder(100, 100, "x", 2, moving=True)
    assert not np.array_equal(other.starts(np.arange(100), context, tokens), passes[0])
    fixed = WindowOrder(100, 100, "x", 1)
    assert np.array_equal(fixed.starts(np.arange(200), context, tokens), fixed.at(np.arange(200)) * context)


def test_caps_on_unique_data_nest_and_do_not_depend_on_the_seed() -> None:
    few = {*WindowOrder(1000, 10, "x", 1).at(np.arange(30))}
    assert len(few) == 10
    assert few == {*WindowOrder(1000, 10, "x", 2).at(np.arange(10))}
    assert few < {*WindowOrder(1000, 50, "x", 1).at(np.arange(50))}


def test_fingerprints_add_up_and_see_everything() -> None:
    tokens = np.random.default_rng(0).integers(0, 500, (8, 17))
    rows = np.arange(8)
    whole = fingerprint(tokens, rows)
    halves = fingerprint(tokens[:3], rows[:3]) + fingerprint(tokens[3:], rows[3:])
    assert (halves - whole) % 2**64 == 0
    for row, column in ((0, 0), (7, 16), (3, 8)):
        changed = tokens.copy()
        changed[row, column] += 1
        assert fingerprint(changed, rows) != whole
    swapped = tokens.copy()
    swapped[0, [1, 2]] = swapped[0, [2, 1]]
    assert fingerprint(swapped, rows) != whole
    assert fingerprint(tokens, rows[::-1].copy()) != whole, "which row has which tokens matters"
