"""Which worker of pytest-xdist runs which tests, and in which order.

A file's tests stay together, since they share what its fixtures made; those of a file in APART do not. What fails
fastest comes first; jobs on SLURM come with it, because they wait for most of their time, beside tests that compute.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

FOLDERS = ("guards", "slurm", "unit", "parallel", "faults", "shipped", "golden", "gpu")
APART: tuple[str, ...] = ()


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/slurm/"):
            return "tests/slurm"  # one sandbox
        return nodeid if file in APART else file


def in_order(items: list[pytest.Item]) -> None:
    """Sort *items* by their folder, keeping the order within."""
    place = {name: number for number, name in enumerate(FOLDERS)}
    items.sort(key=lambda item: place.get(item.nodeid.split("/")[1], len(place)))


def scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)
