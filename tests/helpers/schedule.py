"""Which worker of pytest-xdist runs which tests, and in which order.

A file's tests stay together, since they share what its fixtures made; those of a file in APART do not. What fails
fastest comes first; jobs on SLURM come with it, because they wait for most of their time, beside tests that compute.
A test takes a minute at most, with its fixtures; those that cannot are named in LONG.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ORDER = (
    *("tests/guards/", "tests/slurm/test_jobs", "tests/unit/", "tests/slurm/test_hosts", "tests/parallel/"),
    *("tests/slurm/", "tests/faults/", "tests/shipped/", "tests/golden/", ""),
)
APART: tuple[str, ...] = ()
LONGEST = 60.0  # seconds
LONG: dict[str, str] = {}  # file::function -> why


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else file


def in_order(items: list[pytest.Item]) -> None:
    """Sort *items* by their place in ORDER, keeping the order within."""
    items.sort(key=lambda item: next(place for place, start in enumerate(ORDER) if item.nodeid.startswith(start)))


def scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


def objection(nodeid: str, seconds: float) -> str:
    """What is said of a test that took too long; nothing of others."""
    if seconds <= LONGEST or nodeid.partition("[")[0] in LONG:
        return ""
    return (
        f"{nodeid} took {seconds:.0f} s with its fixtures, {LONGEST:.0f} s are allowed: make it smaller, or name it "
        "and the reason in tests/helpers/schedule.py"
    )
