"""Every kernel assembles for every GPU, spills no register, and takes what the table in the repository says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL, TABLE = ROOT / "tools/kernel_resources.py", ROOT / "tools/results/kernels.json"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_all_kernels_assemble_as_the_table_says(gpu: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(TOOL), "--only", gpu, "--out", str(tmp_path / "kernels.json")]
    done = subprocess.run(command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found, wanted = (json.loads(path.read_text()) for path in (tmp_path / "kernels.json", TABLE))
    assert len(found["lines"]) == len(wanted["lines"]) / 3
    wanted["lines"] = {name: line for name, line in wanted["lines"].items() if name.endswith(gpu)}
    assert found == wanted, f"{TOOL.name} --out {TABLE.relative_to(ROOT)} renews the table"


def test_no_kernel_of_the_table_spills_or_takes_more_shared_memory_than_every_gpu_has() -> None:
    table = json.loads(TABLE.read_text())
    assert table["columns"] == ["registers", "stack bytes", "shared bytes"]
    for name, (registers, stack, shared) in table["lines"].items():
        assert registers <= 255, name
        assert stack == 0, f"{name} spills"
        assert shared <= table["shared bytes at most"], name
