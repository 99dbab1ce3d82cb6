"""The performance table's rows on one GPU, on tiny sizes; skipped where there is none."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "tools" / "bench.py"
ROWS = runpy.run_path(str(PROGRAM))["ROWS"]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def test_every_row_of_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cuda.json"
    command = [sys.executable, str(PROGRAM), "--device", "cuda", "--quick", "--rounds", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = sorted(number for number, (_, devices) in ROWS.items() if "cuda" in devices)
    assert [row["number"] for row in json.loads(out.read_text())["rows"]] == wanted
