"""The rows of the performance table that one process measures, in tiny sizes through the command line.

The others are in test_bench_of_processes. How fast is never asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.parallel import launch
from tools.bench.rows import Options, Row

PROGRAM = Path(__file__).parents[2] / "tools" / "bench.py"
ON_CPU = [0, 2, 5, 7, 13, 17]
ON_GPU = ("gpu_training", "micro_step", "dropout_tax", "attention")  # what they do is the same on a processor


@pytest.mark.slow
def test_every_row_of_a_processor(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    words = ["--quick", "--rounds", "1", "--threads", "1", "--out", str(out), "--row", *map(str, ON_CPU)]
    command = [sys.executable, str(PROGRAM), *words]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert [row["number"] for row in found["rows"]] == ON_CPU
    for row in found["rows"]:
        assert row["series"], row["title"]
        assert all(len(figures) == 1 and figures[0] > 0 for figures in row["series"].values()), row["series"]
    assert all(f"| {number} " in out.with_suffix(".md").read_text() for number in ON_CPU)
    assert out.with_suffix(".png").stat().st_size > 1000
    assert done.stdout.strip() == out.with_suffix(".md").read_text().strip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "--rounds 0: use at least 1"),
        (["--row", "1"], "--row 1 is measured with --device cuda"),
        (["--row", "15", "--text", "nowhere"], "nowhere: no such file or folder"),
        (["--out", "nowhere/cpu.json"], "--out nowhere/cpu.json: its folder is not there or cannot be written"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"bench.py: error: {said}"


@pytest.mark.slow
def test_the_rows_of_a_gpu_run_on_a_processor() -> None:
    (rows,) = launch.run("tests.shipped.test_bench:measure", (ON_GPU,), 1)
    assert [row.number for row in rows] == [1, 3, 4, 6]
    assert all(figures and min(figures) > 0 for row in rows for figures in row.series.values())


def measure(modules: tuple[str, ...]) -> list[Row]:
    import importlib

    options = Options(device="cpu", threads=1, rounds=1, quick=True)
    return [importlib.import_module(f"tools.bench.{name}").measure(options) for name in modules]
