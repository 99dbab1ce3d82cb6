"""What `checkpoint` prints beside its answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import ROOT


@pytest.mark.parametrize(
    "arguments",
    [["mirror", "nowhere", "--to", "file:///nowhere"], ["fetch", "file:///nowhere", "--out", "runs/x"]],
    ids=["mirror", "fetch"],
)
def test_no_library_speaks(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "gpt1_ds", "checkpoint", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert [line[:9] for line in ran.stderr.splitlines()] == ["gpt1-ds: "]
