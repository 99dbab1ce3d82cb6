"""How much memory this machine, or the control group this process lives in, still has, how much it holds, and what its
NVIDIA GPUs say without a CUDA context, which would keep a process from forking ranks.

The sources, in this order: the driver's file in /proc, which a sandbox may hide; the device nodes, which it must show;
nvidia-smi, which a container may lack; torch, in a process of its own.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from gpt1_ds.common.errors import one_line
from gpt1_ds.common.files import this_node

LESS_MEMORY = "use a smaller train.micro_batch, train.recompute=block or more ranks; `gpt1-ds plan` says what fits"
_SHORT = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "CUDA out of memory")
_MOUNT = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns the bytes that can be allocated without swapping; 0 where the system does not say."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    return max(0, min([free, *_left_in_groups()]))


def resident_bytes() -> int:
    """Returns the memory that this process holds now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def shortage(error: BaseException) -> str | None:
    """Returns one line where an error of Python, NumPy or torch (on a CPU or a GPU) says that memory ran out, else
    None.
    """
    said = one_line(error, 160)
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    if not named and not (isinstance(error, RuntimeError) and any(words in str(error) for words in _SHORT)):
        return None
    return f"memory ran out on {this_node()}{f' ({said})' if said else ''}; {LESS_MEMORY}"


def kernel_kills() -> int:
    """Returns the number of processes that Linux has killed on this machine because memory ran out; 0 where it does not
    say.
    """
    try:
        fields = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return 0
    return int(fields.get("oom_kill", 0))


def _left_in_groups() -> Iterator[int]:
    """Yields the bytes that each control group around this process has left (a batch job's limit is that of one of
    them); page cache that can be dropped counts as free.
    """
    for folder, limit_name, used_name in _groups():
        try:
            limit = int((folder / limit_name).read_text(encoding="utf-8"))  # "max" where there is none
            used = int((folder / used_name).read_text(encoding="utf-8"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError):
            continue
        yield limit - used + int(stat.get("inactive_file", 0))


def _groups() -> Iterator[tuple[Path, str, str]]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _MOUNT, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _MOUNT / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            yield (folder, *names)
            if folder == root:
                break


DRIVER = Path("/proc/driver/nvidia/version")
DEVICES = Path("/dev")
SECONDS = 60  # for a program that answers; importing torch takes most of them on a slow disk
_ASK_TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number).total_memory // 2**20)
"""


def sign_of_driver() -> Path | None:
    """Returns the file that shows an NVIDIA driver whose GPUs this process may open; None where there is no such
    file.
    """
    if DRIVER.exists():
        return DRIVER
    nodes = sorted(DEVICES.glob("nvidia[0-9]*"))
    return next((node for node in nodes if os.access(node, os.R_OK | os.W_OK)), None)


def memory_mib() -> list[float]:
    """Returns the memory of each GPU of this host, MiB; empty where nothing answers."""
    found = _nvidia_smi("memory.total")
    try:
        return [float(one) for one in found] if found else _torch_memory_mib()
    except ValueError:  # "[N/A]", as of a GPU that shares the host's memory
        return _torch_memory_mib()


def indices() -> list[str]:
    """Returns the number of each GPU of this host, as CUDA_VISIBLE_DEVICES names it; empty where nothing answers."""
    return _nvidia_smi("index") or [str(number) for number in range(len(_torch_memory_mib()))]


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver, such as 580.65.06; None where nothing answers."""
    text = DRIVER.read_text(encoding="utf-8") if DRIVER.exists() else " ".join(_nvidia_smi("driver_version")[:1])
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found[0] if found else None


def _nvidia_smi(what: str) -> list[str]:
    """Returns what nvidia-smi answers for each GPU of this host; empty where it is not installed or has no answer."""
    return _answer("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits")


@lru_cache(maxsize=1)
def _torch_memory_mib() -> list[float]:
    """Returns MiB by torch; asked only where there is a driver: it takes seconds."""
    if sign_of_driver() is None:
        return []
    return [float(one) for one in _answer(sys.executable, "-P", "-c", _ASK_TORCH)]


def _answer(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []
