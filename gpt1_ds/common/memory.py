"""How much memory this machine, or the control group this process lives in, still has, and how much it holds."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

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
    """Of this process, now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


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
