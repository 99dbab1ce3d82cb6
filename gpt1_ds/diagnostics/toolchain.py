"""What computes here, by name and version, and whether all ranks have the same. Nothing else of the environment."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import gpt1_ds
from gpt1_ds.common.versions import installed, source_hash
from gpt1_ds.diagnostics.report import Record
from gpt1_ds.model import proof
from gpt1_ds.model.proof import capability
from gpt1_ds.training.provenance import cuda_versions, provenance

PACKAGES = ("torch", "triton", "deepspeed", "megatron-core", "numpy")
_DIFFERENT = "use one environment on all hosts (slurm.setup, slurm.container)"
_DEVICES = "leave the host out (slurm.exclude), or ask for what it has: slurm.gpus_per_node"


def toolchain(device: torch.device) -> dict[str, Any]:
    """Name -> version or figure; None for what is not here."""
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    size = torch.cuda.get_device_properties(device).total_memory if cuda else _physical_bytes()
    return {
        "gpt1_ds": f"{gpt1_ds.__version__} (code {provenance()['code']})",
        "device": name,
        "capability": capability(device) if cuda else None,
        "count": device_count(device),
        "memory_gib": round(size / 2**30, 1),
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
        **cuda_versions(),
        "sources": source_hash(*proof.PROVEN_SOURCES),
        "compiler": _compiler(),
    }


def device_count(device: torch.device) -> int:
    """GPUs of this host, or cores that this process may use."""
    return torch.cuda.device_count() if device.type == "cuda" else len(os.sched_getaffinity(0))


def same(toolchains: Sequence[Mapping[str, Any]]) -> Record:
    """Compares all ranks' toolchains: the value is the number of entries that are not the same everywhere."""
    different = [key for key in toolchains[0] if len({str(one.get(key)) for one in toolchains}) > 1]
    said = [f"{key} is {' or '.join(sorted({str(one.get(key)) for one in toolchains}))}" for key in different]
    note = "; ".join([*said, _DIFFERENT]) if different else ""
    return Record("versions and devices that differ between ranks", not different, len(different), 0, note)


def by_host(hosts: Sequence[str], counts: Sequence[int]) -> dict[str, int]:
    """Devices of each host, from what its ranks see: all of them, or, where SLURM gives each rank its own, one."""
    seen = {host: [count for count, at in zip(counts, hosts, strict=True) if at == host] for host in hosts}
    return {host: max(found) if max(found) > 1 else len(found) for host, found in seen.items()}


def devices(found: Mapping[str, int], wanted: int) -> Record:
    """Every host has as many GPUs as slurm.gpus_per_node says (0: not said), else as the host that has most."""
    wanted = wanted or max(found.values())
    few = {host: count for host, count in found.items() if count != wanted}
    note = ", ".join(f"{host} has {count}" for host, count in few.items()) + f"; {_DEVICES}" * bool(few)
    return Record("devices of the host that has fewest", not few, min(found.values()), wanted, note)


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _compiler() -> str | None:
    """Returns what the C++ compiler says first of itself."""
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if found is None:
        return None
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.splitlines() or [""])[0] or None
