"""tools/test.sh fails in CI where the environment of the fake GPU cannot be made, and says so elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
CANNOT = "tests/fakecuda is not run: "


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose other checks all pass."""
    (tmp_path / "tools").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("test.sh", "fakecuda.sh", "constraints.txt"):
        shutil.copy(TOOLS / name, tmp_path / "tools" / name)
    shutil.copytree(TOOLS / "fakecuda", tmp_path / "tools" / "fakecuda", ignore=shutil.ignore_patterns("*.py*"))
    (tmp_path / "tools" / "setup.sh").write_text("")
    for name in ("ruff", "mypy", "python"):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text('#!/bin/sh\n[ "$2" != venv ]\n')  # no virtual environment can be made
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("ci", "code"), [("true", 69), ("", 0)])
def test_an_environment_that_cannot_be_made(checkout: Path, ci: str, code: int) -> None:
    environment = {**os.environ, "CI": ci}
    done = subprocess.run(["bash", "tools/test.sh"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(CANNOT if ci else "tests/fakecuda was not run: "), done.stderr


def test_a_person_is_told_why(checkout: Path) -> None:
    environment = {**os.environ, "CI": ""}
    done = subprocess.run(["bash", "tools/fakecuda.sh"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith(CANNOT)
