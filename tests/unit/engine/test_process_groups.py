"""Which ranks a process group has: every member must name the same ones, or they wait for ever."""

from __future__ import annotations

import pytest

from gpt1_ds.engine.process_groups import Layout

SHAPES = [Layout(8, 8, 8), Layout(4, 2, 3), Layout(1, 3, 2), Layout(2, 1, 1)]
GROUPS = [("tensor",), ("data",), ("tensor", "pipeline")]


def world(layout: Layout) -> range:
    return range(layout.tensor * layout.pipeline * layout.data)


@pytest.mark.parametrize("axes", GROUPS, ids="-".join)
@pytest.mark.parametrize("layout", SHAPES, ids=str)
def test_groups_along_axes_cut_the_world_into_equal_parts(layout: Layout, axes: tuple[str, ...]) -> None:
    members = {rank: layout.members(rank, *axes) for rank in world(layout)}
    size = 1
    for axis in axes:
        size *= getattr(layout, axis)
    for rank, group in members.items():
        assert rank in group
        assert group == sorted(group)
        assert len(set(group)) == size
        assert all(members[member] == group for member in group), "a member names others"


@pytest.mark.parametrize("layout", SHAPES, ids=str)
def test_members_of_a_group_differ_along_its_axes_alone(layout: Layout) -> None:
    for rank in world(layout):
        tensor, pipeline, data = layout.coordinates(rank)
        along_tensor = {layout.coordinates(member) for member in layout.members(rank, "tensor")}
        along_data = {layout.coordinates(member) for member in layout.members(rank, "data")}
        assert along_tensor == {(at, pipeline, data) for at in range(layout.tensor)}
        assert along_data == {(tensor, pipeline, at) for at in range(layout.data)}


def test_neighbours_share_matrices() -> None:
    layout = Layout(tensor=2, pipeline=2, data=2)
    assert layout.members(5, "tensor") == [4, 5]
    assert layout.members(5, "data") == [5, 7]
    assert layout.members(5, "tensor", "pipeline") == [0, 1, 4, 5]
