"""Every kernel assembles for every GPU and takes what the table of this Triton says; none spills registers with the
Triton of CI, nor those of GPT-1 with any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from tools.kernel_resources import fits

ROOT = Path(__file__).parents[2]
TOOL, TABLES = ROOT / "tools/kernel_resources.py", ROOT / "tools/results/kernels"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_all_kernels_assemble_as_the_table_says(gpu: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(TOOL), "--only", gpu, "--out", str(tmp_path / "kernels.json")]
    done = subprocess.run(command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    table = TABLES / f"{triton.__version__}.json"
    renew = f"{TOOL.name} --out {table.relative_to(ROOT)} makes the table"
    assert table.exists(), renew
    found, wanted = (json.loads(path.read_text()) for path in (tmp_path / "kernels.json", table))
    wanted["lines"] = {name: line for name, line in wanted["lines"].items() if name.endswith(gpu)}
    assert found == wanted, renew


@pytest.mark.parametrize("table", sorted(TABLES.iterdir()), ids=lambda table: table.stem)
def test_no_kernel_of_a_table_takes_more_than_it_may(table: Path) -> None:
    said = json.loads(table.read_text())
    assert (said["triton"], said["columns"]) == (table.stem, ["registers", "stack bytes", "shared bytes"])
    assert [name for name, line in said["lines"].items() if not fits(name, line, table.stem)] == []
