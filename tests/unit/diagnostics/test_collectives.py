"""The link between GPUs, as nvidia-smi and a table know it, and a rate against it."""

from __future__ import annotations

import pytest
import torch

from gpt1_ds.diagnostics import collectives

TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t{}\tPXB\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNODE\t0-47\t0\t\tN/A
GPU2\t{}\tNV18\t X \tNODE\t0-47\t0\t\tN/A
NIC0\tPXB\tNODE\tNODE\t X

Legend:
  X    = Self
"""


@pytest.mark.parametrize(
    ("pair", "name", "rate"),
    [
        ("NV18", "NVIDIA H100 80GB HBM3", 450.0),
        ("NV12", "NVIDIA A100-SXM4-80GB", 300.0),
        ("SYS", "NVIDIA H100 PCIe", None),
        ("NV18", "NVIDIA Something New", None),
    ],
)
def test_nvlink(pair: str, name: str, rate: float | None) -> None:
    assert collectives.nvlink_rate(TOPOLOGY.format(pair, pair), name) == rate


@pytest.mark.parametrize("topology", ["", "No devices were found", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"])
def test_no_pair_of_gpus(topology: str) -> None:
    assert collectives.nvlink_rate(topology, "NVIDIA H100 80GB HBM3") is None


def test_a_link_is_known_within_a_host_alone() -> None:
    assert collectives.link_rate(torch.device("cpu"), 1) is None
    assert collectives.link_rate(torch.device("cuda"), 2) is None


def test_a_rate_against_its_link() -> None:
    slow = collectives._rate("all-reduce", 200.0, 450.0, judged=True)
    assert (slow.ok, slow.limit) == (False, 225.0)
    assert slow.note.startswith("44% of a link of 450 GB/s; look at `nvidia-smi topo -m`")
    assert collectives._rate("all-reduce", 300.0, 450.0, judged=True).ok
    small = collectives._rate("all-reduce", 2.0, 450.0, judged=False)
    assert (small.ok, small.limit) == (True, None), "a small message does not fill a link"
    unknown = collectives._rate("all-reduce", 1.0, None, judged=True)
    assert (unknown.ok, unknown.limit, unknown.note) == (True, None, "link unknown")
