"""How much memory this machine, or the control group this process lives in, still has."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that can be allocated without swapping; 0 where the system does not say."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    try:
        limit = int((_CGROUP / "memory.max").read_text())  # "max" where there is none
        return min(free, max(0, limit - int((_CGROUP / "memory.current").read_text())))
    except (OSError, ValueError):
        return free
