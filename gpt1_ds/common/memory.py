"""How much memory this machine, or the control group this process lives in, still has, and how much it holds."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from gpt1_ds.common.errors import one_line
from gpt1_ds.common.files import this_node

LESS_MEMORY = "use a smaller train.micro_batch, train.recompute=block or more ranks; `gpt1-ds plan` says what fits"
_SHORT = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "CUDA out of memory")
_MOUNT = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that can be allocated without swapping; 0 where the system does not say."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    return max(0, min([free, *_left_in_groups()]))


def resident_bytes() -> int:
    """Returns the memory that this process holds now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
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
    """Processes that Linux has killed on this machine because memory ran out; 0 where it does not say."""
    try:
        fields = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(fields.get("oom_kill", 0))


def _left_in_groups() -> Iterator[int]:
    """What each control group around this process leaves (a batch job's limit lies on one of them); page cache that
    can be dropped counts as free.
    """
    for folder, limit_name, used_name in _groups():
        try:
            limit = int((folder / limit_name).read_text())  # "max" where there is none
            used = int((folder / used_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        yield limit - used + int(stat.get("inactive_file", 0))


def _groups() -> Iterator[tuple[Path, str, str]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
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
