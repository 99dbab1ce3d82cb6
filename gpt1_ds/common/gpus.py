"""What this host says of its NVIDIA GPUs without a CUDA context, which would keep a process from forking ranks.

The sources, in this order: the driver's file in /proc, which a sandbox may hide; the device nodes, which it must show;
nvidia-smi, which a container may lack; torch, in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
DEVICES = Path("/dev")
SECONDS = 60  # for a program that answers; importing torch takes most of them on a slow disk
_ASK_TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number).total_memory // 2**20)
"""


def sign_of_driver() -> Path | None:
    """The file that shows an NVIDIA driver whose GPUs this process may open; None where there is no such file."""
    if DRIVER.exists():
        return DRIVER
    nodes = sorted(DEVICES.glob("nvidia[0-9]*"))
    return next((node for node in nodes if os.access(node, os.R_OK | os.W_OK)), None)


def memory_mib() -> list[float]:
    """The memory of each GPU of this host, MiB; empty where nothing answers."""
    found = _nvidia_smi("memory.total")
    try:
        return [float(one) for one in found] if found else _torch_memory_mib()
    except ValueError:  # "[N/A]", as of a GPU that shares the host's memory
        return _torch_memory_mib()


def indices() -> list[str]:
    """The number of each GPU of this host, as CUDA_VISIBLE_DEVICES names it; empty where nothing answers."""
    return _nvidia_smi("index") or [str(number) for number in range(len(_torch_memory_mib()))]


def driver_version() -> str | None:
    """The version of the NVIDIA driver, such as 580.65.06; None where nothing answers."""
    text = DRIVER.read_text() if DRIVER.exists() else " ".join(_nvidia_smi("driver_version")[:1])
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found[0] if found else None


def _nvidia_smi(what: str) -> list[str]:
    """Its answer for each GPU of this host; empty where it is not installed or has no answer."""
    return _answer("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits")


@lru_cache(maxsize=1)
def _torch_memory_mib() -> list[float]:
    """Asked only where there is a driver: it takes seconds."""
    if sign_of_driver() is None:
        return []
    return [float(one) for one in _answer(sys.executable, "-P", "-c", _ASK_TORCH)]


def _answer(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []
