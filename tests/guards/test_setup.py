"""tools/setup.sh picks the build of torch by the machine's driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "setup.sh"


def build(stubs: Path, *options: str) -> tuple[int, str]:
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", SCRIPT, "--print", *options], env=environment, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """An nvidia-smi that answers what `version` in its folder holds, or fails without one."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/version 2>/dev/null || exit 9\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        ("580.65.06", (), "cu130"),
        ("570.124.06\n570.124.06", (), "cu128"),
        ("535.104.05", (), "cu126"),
        ("535.104.05", ("--cpu",), "cpu"),
        ("535.104.05", ("--gpu=cu128",), "cu128"),
        (None, (), "cpu"),
        (None, ("--gpu",), "cu128"),  # a login node
    ],
)
def test_build(driver: Path, version: str | None, options: tuple[str, ...], expected: str) -> None:
    if version:
        (driver / "version").write_text(f"{version}\n")
    assert build(driver, *options) == (0, expected)


def test_what_cannot_be(driver: Path) -> None:
    (driver / "version").write_text("470.223.02\n")
    code, told = build(driver)
    assert code == 2
    assert "the NVIDIA driver is 470; torch needs 525 or newer" in told
    code, told = build(driver, "--gup")
    assert code == 2
    assert told.startswith("--gup: write --gpu")
