"""The rows of the performance table that one process measures, in tiny sizes, and the program that prints it.

The others are in test_bench_of_processes. How fast is never asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tools.bench.rows import Options, Row

PROGRAM = Path(__file__).parents[2] / "tools" / "bench.py"
ON_CPU = {2: "tax", 5: "head", 7: "update", 13: "training", 17: "books", 20: "generation"}
# what these do is the same on a CPU
ON_GPU = {3: "micro_step", 6: "attention"}


@pytest.mark.slow
def test_the_program_prints_and_keeps_what_it_measured(tmp_path: Path) -> None:
    """Two rows in two calls: each in a process of its own, the later one beside the earlier."""
    out, numbers = tmp_path / "cpu.json", [5, 15]
    for wanted in ("15", "5"):
        arguments = ["--quick", "--rounds", "1", "--threads", "1", "--out", str(out), "--row", wanted]
        command = [sys.executable, str(PROGRAM), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert [row["number"] for row in found["rows"]] == numbers
    for row in found["rows"]:
        assert all(len(figures) == 1 and figures[0] > 0 for figures in row["series"].values()), row["series"]
    assert all(f"| {number} " in out.with_suffix(".md").read_text() for number in numbers)
    assert out.with_suffix(".png").stat().st_size > 1000
    assert done.stdout.strip() == out.with_suffix(".md").read_text().strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "--rounds 0: use at least 1"),
        (["--row", "1"], "--row 1 is measured with --device cuda"),
        (["--row", "15", "--text", "nowhere"], "nowhere: no such file or folder"),
        (["--out", "nowhere/cpu.json"], "--out nowhere/cpu.json: its folder is not there or cannot be written"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"bench.py: error: {said}"


@pytest.mark.parametrize(("number", "module"), [*ON_CPU.items(), *ON_GPU.items()])
def test_every_contender_of_a_row_is_measured(number: int, module: str) -> None:
    (row,) = launch.run("tests.shipped.test_bench:measure", (module,), 1)
    assert row.number == number
    assert row.series
    assert all(len(figures) == 1 and figures[0] > 0 for figures in row.series.values()), row.series


def measure(module: str) -> Row:
    import importlib

    options = Options(device="cpu", threads=1, rounds=1, quick=True)
    row: Row = importlib.import_module(f"tools.bench.{module}").measure(options)
    return row
