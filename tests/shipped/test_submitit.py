"""The example of submitit trains on this machine, as the program by itself does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import runs

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_losses_are_those_of_the_program(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [*runs.TINY, f"data.path={tiny_data}", "train.steps=4"]
    command = [sys.executable, ROOT / "launch" / "submitit_run.py", "--cluster", "local", "--ranks", "2"]
    leftover = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "5"}  # of the shell that submits
    environment = {**os.environ, **leftover, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--folder", tmp_path / "jobs", "pretrain", *arguments, f"run.dir={tmp_path / 'there'}"],
        **{"env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240},
    )
    assert done.returncode == 0, done.stderr
    here = [*arguments, f"run.dir={tmp_path / 'here'}"]
    assert runs.pretrain(here, 2) == 0
    assert runs.losses(runs.folder([*arguments, f"run.dir={tmp_path / 'there'}"])) == runs.losses(runs.folder(here))
