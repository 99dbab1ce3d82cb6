"""Kernels, syncs, copies and bytes of a step of GPT-1 are those of tools/fakecuda/budget.json: no more, no less.

Unproven: that a GPU takes the time that tools/fakecuda/roofline.py estimates.
"""

from __future__ import annotations

import json

import pytest

from tools import gpu_budget

LAUNCHES = 40  # of a step whose micro-batches are CUDA graphs


@pytest.mark.parametrize("mode", gpu_budget.MODES)
@pytest.mark.parametrize("world", gpu_budget.WORLDS)
def test_a_step_costs_what_the_table_says(world: int, mode: str) -> None:
    known = json.loads(gpu_budget.FILE.read_text())[str(world)][mode]
    found = gpu_budget.budget(gpu_budget.count([], world, mode))
    again = "if that is meant: .venv-fakecuda/bin/python tools/gpu_budget.py --write"
    assert found.keys() == known.keys(), again
    for name, value in known.items():
        close = {"rel": 0.01, "abs": 0.001} if "bytes" in name or "microseconds" in name else {"rel": 0.0, "abs": 0.0}
        assert found[name] == pytest.approx(value, **close), f"{name} on {world} ranks, {mode}; {again}"


def test_a_step_waits_once_and_copies_each_micro_batch_once() -> None:
    for world, modes in json.loads(gpu_budget.FILE.read_text()).items():
        for mode, costs in modes.items():
            assert costs["host_syncs"] <= 1, f"on {world} ranks, {mode}"
            assert costs["copies_to_device"] <= costs["micro_batches"], f"on {world} ranks, {mode}"


def test_the_host_launches_little_outside_of_graphs() -> None:
    for world, modes in json.loads(gpu_budget.FILE.read_text()).items():
        for mode, costs in modes.items():
            assert costs["launches_outside_graphs"] <= LAUNCHES, f"on {world} ranks, {mode}"
