"""The table of GPU checks that users sent."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.diagnostics.report import Record, Report, write
from tools.bench import gpu_checks, gpu_contacts

ROOT = Path(__file__).parents[2]
TOOLS = {"gpt1_ds": "0.1.0 (code ab)", "device": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "cuda": "13.0"}
RECORDS = [
    Record("dropout masks of hidden states, different bits", True, 0, 0),
    Record("all-reduce of 4 MiB, GB/s", True, 20.0),
    Record("all-reduce of 1024 MiB, GB/s", False, 123.4, 225.0, "44%"),
    Record("a step of the real engine, tokens/s", True, 4_650_000.0),
]
REPORT = Report("node1", "2026-12-01", 16, {"node1": 8, "node2": 8}, {**TOOLS, "driver": "580.1"}, RECORDS)


def test_a_row_for_each_file(tmp_path: Path) -> None:
    assert gpu_checks.table(tmp_path) == gpu_checks.NONE_YET + "\n"
    write(REPORT, tmp_path / "gpu-check-node1.json")
    write(replace(REPORT, date="2026-11-30", records=[], world=1), tmp_path / "gpu-check-other.json")
    older, newer = gpu_checks.table(tmp_path).splitlines()[2:]
    assert newer == (
        "| 16 x NVIDIA H100 80GB HBM3 on 2 hosts | 2.13.0, 13.0, 580.1 | 3 of 4; not: all-reduce of 1024 MiB, GB/s "
        "| 123.4 | 4,650,000 | gpu-check-node1.json, 2026-12-01, gpt1_ds 0.1.0 (code ab) |"
    )
    assert "| 0 of 0 | - | - | gpu-check-other.json" in older


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "gpu-check-x.json").write_text("{}")
    with pytest.raises(DataError, match=r"gpu-check-x\.json: not a self-proof"):
        gpu_checks.table(tmp_path)


def test_it_is_printed_where_there_is_no_gpu() -> None:
    words = [sys.executable, str(ROOT / "tools" / "bench.py"), "--device", "cuda", "--row", "15"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2, "row 15 is measured on CPUs"
    results = ROOT / "tools" / "bench" / "results"
    assert done.stdout == f"{gpu_checks.table(results)}\n{gpu_contacts.tables(results)}\n"
