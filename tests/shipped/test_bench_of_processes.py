"""The rows of the performance table that run in processes of their own, in tiny sizes through the command line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.parallel import launch
from tests.helpers.shared_data import ROOT as SHARED_DATA

ROOT = Path(__file__).parents[2]
ROWS = [11, 12, 15, 16, 18]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results file of all these rows, measured once."""
    out = tmp_path_factory.mktemp("bench") / "quick.json"
    words = ["--quick", "--rounds", "1", "--threads", "1", "--out", str(out), "--row", *map(str, ROWS)]
    if (SHARED_DATA / "gpt1_bpe").exists():
        words += ["--bpe", str(SHARED_DATA / "gpt1_bpe")]
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), *words]
    done = subprocess.run(command, cwd=out.parent, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def rows(results: Path) -> dict[int, dict[str, Any]]:
    return {row["number"]: row for row in json.loads(results.read_text())["rows"]}


def test_every_row_measures_all_its_contenders(rows: dict[int, dict[str, Any]], results: Path) -> None:
    assert sorted(rows) == ROWS
    for row in rows.values():
        assert all(len(values) == 1 and values[0] > 0 for values in row["series"].values()), row["series"]
        assert all(math.isfinite(value) for ratio in row["ratios"] for value in ratio["values"]), row["ratios"]
        assert f"| {row['number']} {row['title']} |" in results.with_suffix(".md").read_text()
    assert results.with_suffix(".png").exists()
    assert results.with_name("growth.png").exists()


def test_the_layouts_of_a_row_train_alike(rows: dict[int, dict[str, Any]]) -> None:
    losses = rows[11]["checks"]["losses"]  # the row ends with an error where another layout has other ones
    assert len(losses) == 2
    assert all(abs(loss - math.log(2000)) < 0.5 for loss in losses), losses
    assert len(rows[11]["series"]) == 8
    sums = rows[12]["checks"]["TP2 tiny"]
    assert sums["gloo"]["calls"] == sums["shared memory"]["calls"] > 10


def test_growth_counts_what_the_planner_counts(rows: dict[int, dict[str, Any]]) -> None:
    checks = rows[18]["checks"]
    found = [point for point in checks["points"].values() if "peak_mib" in point]
    assert found
    assert all(abs(point["planned_mib"] / point["peak_mib"] - 1) < 0.5 for point in found), found
    for axis, names in checks["axes"].items():
        points = [checks["points"][name] for name in names]
        assert [point[axis] for point in points] == sorted(point[axis] for point in points)
        assert [point["operations"] for point in points] == sorted(point["operations"] for point in points)


def sums_differ(lengths: list[int]) -> list[str]:
    """Runs on every rank: the tensors whose sum over shared memory is not gloo's."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.parallel.grid import connect
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
