"""Slices of any layout make up those of any other, element by element."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_ds.checkpoint.shard import Geometry, Slice, assemble, partial_hash


def cut(geometry: Geometry, tensor_ranks: int, data_ranks: int) -> list[Slice]:
    """The slices that tensor x data ranks hold, uneven at the end as ZeRO's are."""
    found = []
    bounds = [geometry.cut * i // tensor_ranks for i in range(tensor_ranks + 1)]
    for start, stop in itertools.pairwise(bounds):
        size = geometry.outer * (stop - start) * geometry.inner
        step = -(-size // data_ranks) or 1
        found += [Slice(start, stop, at, min(step, size - at)) for at in range(0, size, step)]
    return found


def elements(whole: torch.Tensor, geometry: Geometry, part: Slice) -> torch.Tensor:
    shaped = whole.view(geometry.outer, geometry.cut, geometry.inner)[:, part.start : part.stop]
    return shaped.reshape(-1)[part.offset : part.offset + part.count]


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    dim=st.one_of(st.none(), st.integers(0, 2)),
    ranks=st.tuples(*[st.integers(1, 4)] * 4),
)
def test_any_cut_from_any_cut(shape: list[int], dim: int | None, ranks: tuple[int, int, int, int]) -> None:
    dim = None if dim is None or dim >= len(shape) else dim
    geometry = Geometry.of(shape, dim)
    whole = torch.arange(geometry.elements, dtype=torch.float32)
    have = cut(geometry, min(ranks[0], geometry.cut), ranks[1])
    for want in cut(geometry, min(ranks[2], geometry.cut), ranks[3]):
        found = assemble(
            geometry, want, have, lambda p, first, count: elements(whole, geometry, p)[first : first + count]
        )
        assert torch.equal(found, elements(whole, geometry, want))


def test_what_is_missing_is_noticed() -> None:
    for geometry in (Geometry.of((4, 6), 0), Geometry.of((4, 6), 1)):
        have = cut(geometry, 2, 2)
        want = Slice(0, geometry.cut, 0, geometry.elements)
        for gone in range(len(have)):
            left = have[:gone] + have[gone + 1 :]
            with pytest.raises(LookupError):
                assemble(geometry, want, left, lambda _p, _first, count: torch.zeros(count))


def test_the_hash_does_not_depend_on_the_cut_but_on_every_bit() -> None:
    geometry = Geometry.of((6, 8), 1)
    whole = torch.randn(48)

    def total(values: torch.Tensor, tensor_ranks: int, data_ranks: int) -> int:
        parts = cut(geometry, tensor_ranks, data_ranks)
        return sum(int(partial_hash(elements(values, geometry, part), geometry, part)) for part in parts) % 2**64

    first = total(whole, 1, 1)
    assert {total(whole, t, d) for t in (1, 2, 4) for d in (1, 2, 3)} == {first}
    for element, bit in ((0, 0), (17, 12), (47, 31)):
        flipped = whole.clone()
        flipped.view(torch.int32)[element] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
        assert total(flipped, 2, 3) != first
    swapped = whole.clone()
    swapped[[3, 4]] = whole[[4, 3]]
    assert total(swapped, 2, 3) != first
