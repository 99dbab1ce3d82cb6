"""Two hosts without SLURM: torchrun's own options, and the variables that a PyTorchJob's pods get."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.helpers.hosts import PORT, ROOT, Hosts, hosts
from tests.slurm.test_hosts import arguments, wait_for_end
from tools import runs

GUIDE = ROOT / "gpt1_ds" / "guides" / "scaling-out.md"


def by_hand(network: Hosts, host: int, told: list[str]) -> tuple[list[str], dict[str, str]]:
    """The guide's line of this host, with this network's address and the arguments of a small run."""
    (line,) = re.findall(rf"^torchrun .*--node-rank {host} .*$", GUIDE.read_text(), flags=re.MULTILINE)
    values = {"HOST0": network.address(0), "29500": PORT, "8": "1"}
    command = line.partition(" pretrain ")[0].split()
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *(values.get(argument, argument) for argument in command[1:]),
        *told,
    ], {}


def in_a_pod(network: Hosts, host: int, told: list[str]) -> tuple[list[str], dict[str, str]]:
    """The manifest's command with the variables that the operator sets."""
    replicas = yaml.safe_load((ROOT / "launch" / "pytorchjob.yaml").read_text())["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker" if host else "Master"]["template"]["spec"]["containers"]
    assert container["command"][0] == "torchrun"
    meeting = {"MASTER_ADDR": network.address(0), "MASTER_PORT": PORT}
    variables = {
        **meeting,
        **{f"PET_{name}": value for name, value in meeting.items()},
        **{"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(host)},
        **{"RANK": str(host), "WORLD_SIZE": "2"},
    }
    return [sys.executable, "-m", "torch.distributed.run", *container["command"][1:], *told], variables


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_hand, in_a_pod])
def test_losses_are_those_of_one_host(
    way: Callable[..., tuple[list[str], dict[str, str]]], tiny_data: Path, tmp_path: Path
) -> None:
    there = arguments(tiny_data, tmp_path / "hosts", "train.steps=6")
    with hosts(2) as network:
        said = wait_for_end(network.start_each(lambda host: way(network, host, ["pretrain", *there]), tmp_path), 120)
    here = arguments(tiny_data, tmp_path / "here", "train.steps=6")
    assert runs.pretrain(here, 2) == 0
    assert len(runs.losses(runs.folder(here))) == 6
    assert runs.losses(runs.folder(there)) == runs.losses(runs.folder(here)), said
