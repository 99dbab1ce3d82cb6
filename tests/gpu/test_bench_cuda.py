"""The performance table's rows on one GPU, on tiny sizes."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "tools" / "bench.py"
ROWS = runpy.run_path(str(PROGRAM))["ROWS"]


def test_every_row_of_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cuda.json"
    command = [sys.executable, str(PROGRAM), "--device", "cuda", "--quick", "--rounds", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = sorted(number for number, (_, devices) in ROWS.items() if "cuda" in devices)
    assert [row["number"] for row in json.loads(out.read_text())["rows"]] == wanted
