"""The rows of the performance table that run in processes of their own, in tiny sizes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tests.helpers.shared_data import ROOT as SHARED_DATA
from tools.bench import growth
from tools.bench.rows import Options, Row

pytestmark = pytest.mark.slow

ROWS = {
    1: "gpu_training",
    4: "dropout_tax",
    11: "pipeline",
    12: "collective",
    15: "tokenization",
    16: "startup",
    18: "growth",
    19: "library_kinds",
}


@pytest.fixture(scope="module")
def row() -> Callable[[int], Row]:
    """Each row is measured once, from this process, whose ranks start at once."""

    @cache
    def measured(number: int) -> Row:
        bpe = str(SHARED_DATA / "gpt1_bpe") if (SHARED_DATA / "gpt1_bpe").exists() else None
        options = Options(threads=1, rounds=1, quick=True, bpe=bpe)
        found: Row = importlib.import_module(f"tools.bench.{ROWS[number]}").measure(options)
        return found

    return measured


@pytest.mark.parametrize("number", ROWS)
def test_every_row_measures_all_its_contenders(number: int, row: Callable[[int], Row]) -> None:
    found = row(number)
    assert found.number == number
    assert found.series
    assert all(len(values) == 1 and values[0] > 0 for values in found.series.values()), found.series
    assert all(math.isfinite(value) for ratio in found.ratios for value in ratio.values), found.ratios


def test_the_layouts_of_a_row_train_alike(row: Callable[[int], Row]) -> None:
    losses = row(11).checks["losses"]  # the row ends with an error where another layout has other ones
    assert len(losses) == 2
    assert all(abs(loss - math.log(2000)) < 0.5 for loss in losses), losses
    assert len(row(11).series) == 8


def test_growth_counts_what_the_planner_counts(row: Callable[[int], Row], tmp_path: Path) -> None:
    checks = row(18).checks
    found = [point for point in checks["points"].values() if "peak_mib" in point]
    assert found
    assert all(abs(point["planned_mib"] / point["peak_mib"] - 1) < 0.5 for point in found), found
    for axis, names in checks["axes"].items():
        points = [checks["points"][name] for name in names]
        assert [point[axis] for point in points] == sorted(point[axis] for point in points)
        assert [point["operations"] for point in points] == sorted(point["operations"] for point in points)
    growth.draw(tmp_path / "growth.png", row(18))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def sums_differ(lengths: list[int]) -> list[str]:
    """Runs on every rank: the tensors whose sum over shared memory is not gloo's."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect
    from tools.bench import shared_sum

    connect(60)
    assert dist.group.WORLD is not None
    shared = shared_sum.SharedSum(dist.group.WORLD)
    wrong = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for length in lengths:
            tensor = torch.arange(length).remainder(7).add(dist.get_rank()).to(dtype)  # small whole numbers: exact
            expected = tensor.clone()
            dist.all_reduce(expected)
            shared.all_reduce(tensor)
            if not torch.equal(tensor, expected):
                wrong.append(f"{length} of {dtype}")
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_through_shared_memory_are_right(ranks: int) -> None:
    slot = 1 << 19
    lengths = [1, 2, 5, 1000, 3 * slot // 4, 8, 2 * slot // 4 + 1, 7]  # pieces of every kind, one behind another
    for wrong in launch.run("tests.shipped.test_bench_of_processes:sums_differ", (lengths,), ranks):
        assert not wrong
