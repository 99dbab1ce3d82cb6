"""Every shell script parses, and shellcheck has nothing to say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = ("launch/*.sh", "launch/*.sbatch", "tools/*.sh", "tools/gpu/*.sh", ".ci/run")
SCRIPTS = [script for pattern in PATTERNS for script in ROOT.glob(pattern)]


def test_scripts_parse() -> None:
    assert len(SCRIPTS) > 10
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_shellcheck_is_content() -> None:
    if shutil.which("shellcheck") is None:
        assert "CI" not in os.environ, "CI has shellcheck"
        pytest.skip("needs shellcheck")
    words = ["shellcheck", "--external-sources", *(str(path.relative_to(ROOT)) for path in SCRIPTS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_launch_scripts_are_read_in_a_minute() -> None:
    for script in (path for path in (ROOT / "launch").rglob("*") if path.is_file() and path.suffix != ".pyc"):
        assert script.suffix == ".md" or len(script.read_text().splitlines()) < 60, script
