"""Sums over all ranks: right to the last integer, and how fast they are against the link between the devices.

Every rank calls these functions together. The bus bandwidth is what NCCL's own tests report: bytes that each link must
carry, per second, whatever the number of ranks.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.diagnostics.report import Record

Gather = Callable[[Any], list[Any]]  # every rank's value, on every rank

MIB = 1 << 20
SIZES = {"cpu": (4,), "cuda": (4, 16, 64, 256, 1024)}  # MiB of fp32, of all ranks' parts together
REPEATS = 5
PART_OF_LINK = 0.5  # less of a link's rate is a problem
_PERIOD = 1021  # of the numbers that are added up: small enough that every sum is exact in fp32
_NVLINK = {"B200": 50.0, "B100": 50.0, "H200": 25.0, "H100": 25.0, "H800": 25.0, "A100": 25.0, "V100": 25.0}  # a link's
_VALUES = "sums are wrong: do not train here; NCCL_P2P_DISABLE=1 or NCCL_ALGO=Ring may show which link is broken"
_SPEED = "look at `nvidia-smi topo -m` and `nvidia-smi nvlink -s`, and between hosts at NCCL_IB_HCA, NCCL_SOCKET_IFNAME"


def all_reduce(device: torch.device, mib: int) -> tuple[int, float]:
    """(numbers that are wrong on this rank, seconds of one all-reduce of `mib` MiB)."""
    mine, want = _numbers(mib * MIB // 4, device)
    tensor = mine.clone()
    dist.all_reduce(tensor)
    wrong = int((tensor != want).sum())
    return wrong, _seconds(partial(dist.all_reduce, tensor), device)


def reduce_scatter(device: torch.device, mib: int) -> tuple[int, float]:
    """(numbers that are wrong in this rank's part, seconds of one reduce-scatter of about `mib` MiB)."""
    world, rank = dist.get_world_size(), dist.get_rank()
    part = max(1, mib * MIB // 4 // world)
    mine, want = _numbers(part * world, device)
    tensor = torch.empty(part, device=device)
    scatter = partial(dist.reduce_scatter_tensor, tensor, mine)
    scatter()
    wrong = int((tensor != want[rank * part : (rank + 1) * part]).sum())
    return wrong, _seconds(scatter, device)


KINDS: dict[str, tuple[Callable[[torch.device, int], tuple[int, float]], int]] = {
    "all-reduce": (all_reduce, 2),  # how often a byte crosses a link, times (ranks - 1) / ranks
    "reduce-scatter": (reduce_scatter, 1),
}


def checks(device: torch.device, gather: Gather, link: float | None) -> list[Record]:
    """Returns two records for each kind: numbers that are wrong on any rank at any size; the bus bandwidth at each
    size, the largest against `link`, the rate between neighbours in GB/s (None: not known).
    """
    found, world = [], dist.get_world_size()
    for kind, (collective, crossings) in KINDS.items():
        wrong, rates = 0, {}
        for mib in _sizes(device, gather):
            bad, seconds = zip(*gather(collective(device, mib)), strict=True)
            wrong += sum(bad)
            rates[mib] = crossings * (world - 1) / world * mib * MIB / max(seconds) / 1e9
        found.append(Record(f"{kind}, wrong numbers", wrong == 0, wrong, 0, _VALUES * (wrong > 0)))
        if world > 1:
            found += [_rate(f"{kind} of {mib} MiB, GB/s", rates[mib], link, mib == max(rates)) for mib in rates]
    return found


def _rate(name: str, rate: float, link: float | None, judged: bool) -> Record:
    """`link` counts for sizes that fill it."""
    known = "link unknown" if link is None else f"{rate / link:.0%} of a link of {link:g} GB/s"
    limit = PART_OF_LINK * link if judged and link else None
    ok = limit is None or rate >= limit
    return Record(name, ok, rate, limit, known + f"; {_SPEED}" * (not ok))


def link_rate(device: torch.device, hosts: int) -> float | None:
    """GB/s each way between this host's GPUs; None where that is not known: on CPUs, over PCIe and between hosts."""
    if device.type != "cuda" or hosts > 1:
        return None
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return nvlink_rate(done.stdout, torch.cuda.get_device_name(device))


def nvlink_rate(topology: str, device_name: str) -> float | None:
    """Returns the rate of the slowest pair of GPUs in what `nvidia-smi topo -m` prints: links (NV18 are 18) times the
    rate of one. None for one GPU, for a pair without NVLink, and for a GPU that is not listed here.
    """
    one = next((rate for part, rate in _NVLINK.items() if part in device_name), None)
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines()]
    rows = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    pairs = [cell for row in rows for cell in row[1 : len(rows) + 1] if cell != "X"]
    if one is None or not pairs or not all(re.fullmatch(r"NV\d+", cell) for cell in pairs):
        return None
    return one * min(int(cell[2:]) for cell in pairs)


def _numbers(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's whole numbers, different on each, and what all ranks' add up to."""
    world, rank = dist.get_world_size(), dist.get_rank()
    base = (torch.arange(count, dtype=torch.int32, device=device) % _PERIOD).float()
    return base + rank, world * base + world * (world - 1) // 2


def _seconds(collective: Callable[[], object], device: torch.device) -> float:
    """Returns how long one call takes, after one to warm up."""
    collective()
    _wait(device)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(REPEATS):
        collective()
    _wait(device)
    return (time.perf_counter() - began) / REPEATS


def _sizes(device: torch.device, gather: Gather) -> list[int]:
    """Returns the sizes that fit into every rank's free memory, beside the numbers that results are compared to."""
    sizes = SIZES[device.type]
    if device.type != "cuda":
        return list(sizes)
    free = min(gather(torch.cuda.mem_get_info(device)[0]))
    return [mib for mib in sizes if 6 * mib * MIB <= free] or [sizes[0]]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
