"""Which ranks a process group has: every member must name the same ones, or they wait for ever."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.engine.process_groups import Layout
from gpt1_ds.launcher import launch

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


def runs_on_a_gpu(ours: bool) -> tuple[list[str], str]:
    """In a process with a group of its own, whose loaded model is asked before and after a run on a GPU is connected,
    with gloo in NCCL's place: the backends that were asked for, and what was refused.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from gpt1_ds.config import load
    from gpt1_ds.engine import process_groups
    from gpt1_ds.model.build import DenseModel
    from gpt1_ds.model.layers import TensorParallel

    init, asked = dist.init_process_group, []

    def without_nccl(backend: str, *, device_id: object = None, **named: object) -> None:
        asked.append(backend)
        init("gloo", **named)

    process_groups.dist.init_process_group = without_nccl
    if not ours:
        init("gloo", store=HashStore(), rank=0, world_size=1)
    small = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=8"]
    first = process_groups.connect_alone()
    model = DenseModel(load([], small), 100, TensorParallel(first)).eval()
    tokens_SB = torch.arange(8)[:, None]
    before = model.logits(tokens_SB)
    try:
        process_groups.connect(60, torch.device("cuda"))
    except LaunchError as refused:
        return asked, str(refused)
    assert torch.equal(model.logits(tokens_SB), before), "a model that was loaded before is still of use"
    dist.destroy_process_group()
    assert process_groups.connect_alone() is not first, "a model that is loaded now has a group that lives"
    return asked, ""


def test_a_run_on_a_gpu_follows_a_loaded_model() -> None:
    assert launch.run(f"{__name__}:runs_on_a_gpu", (True,), 1) == [(["gloo", "nccl", "gloo"], "")]


def test_a_group_of_somebody_else_is_left_alone() -> None:
    ((asked, refused),) = launch.run(f"{__name__}:runs_on_a_gpu", (False,), 1)
    assert asked == []
    assert refused.startswith("this process has a process group already (gloo): end it with")


NEW_NETWORK = 0x40000000  # of unshare(2)


def one_rank_without_ipv4() -> tuple[bool, bool, bool]:
    """Runs on a rank: whether a loaded model and a run have a group there, and whether the interface stays chosen."""
    import ctypes

    from gpt1_ds.config import load
    from gpt1_ds.engine import process_groups, session
    from gpt1_ds.launcher import network

    del os.environ[network.INTERFACE]  # as without --nproc
    assert ctypes.CDLL(None).unshare(NEW_NETWORK) == 0, "root may"
    for arguments in ("link set lo up", "-4 address delete 127.0.0.1/8 dev lo"):
        subprocess.run(["ip", *arguments.split()], check=True)
    loaded = process_groups.connect_alone().size() == 1
    with session.distributed_session(load([], [])) as groups:
        trained = groups.gather(7) == [7]
    return loaded, trained, network.INTERFACE in os.environ


def test_one_rank_asks_nobody_for_the_name_of_its_host() -> None:
    """Gloo looked it up, which takes long where no server answers, and then took an address that was not there."""
    try:
        subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        if "CI" in os.environ:
            raise
        pytest.skip("network namespaces need root and iproute2")
    assert launch.run(f"{__name__}:one_rank_without_ipv4", (), 1) == [(True, True, False)]
