"""tools/setup.sh picks the build of torch by the machine's driver, and says what it is at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "setup.sh"


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


VENV = 'if [ "$2" = venv ]; then mkdir -p .venv/bin; cp "$0" .venv/bin/python; fi'


def set_up(folder: Path, python: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in a project of its own, whose Python is the shell script `python`."""
    (folder / "tools").mkdir(exist_ok=True)
    for name in ("tools/setup.sh", "tools/constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    command = ["bash", folder / "tools" / "setup.sh", *options]
    environment = {**os.environ, "PYTHON": str(program), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("minor", "supported"), [(10, False), (11, True), (13, True), (14, False)])
def test_a_python_that_no_wheel_is_for_is_refused_at_once(tmp_path: Path, minor: int, supported: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert (f"Programming Language :: Python :: 3.{minor}" in project["classifiers"]) == supported
    version = f"import sys; sys.version_info, sys.version = (3, {minor}, 0), '3.{minor}.0 (main)'"
    python = f'[ "$1" = -c ] || exit 7\nexec {sys.executable} -c "{version}; $2"'
    done = set_up(tmp_path, python, "--cpu")
    if supported:
        assert done.returncode == 7, done.stderr  # it has come to `-m venv`
        return
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path}/python is 3.{minor}.0; Python 3.11, 3.12 or 3.13 is needed"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("build", "download"), [("--cpu", "200 MB"), ("--gpu=cu128", "3 GB")])
def test_every_step_is_said_with_its_size(tmp_path: Path, build: str, download: str) -> None:
    done = set_up(tmp_path, VENV, build)
    lines = [re.sub(r"^ *\d+ s  ", "", line) for line in done.stderr.splitlines()]
    assert [line.split()[0] for line in lines] == ["setting", "1/3", "2/3", "3/3", "done:"], done.stderr
    assert f"build {build.removeprefix('--').removeprefix('gpu=')}: about {download} to download" in lines[1]
    assert "MB to download" in lines[2]
    again = set_up(tmp_path, VENV, build)
    assert (again.returncode, again.stderr) == (0, ""), "what is there is not made again"


def test_without_a_cpu_build_the_size_of_the_other_is_said(tmp_path: Path) -> None:
    refuses = 'case "$*" in *+cpu | *--index-url*) exit 1 ;; esac'
    done = set_up(tmp_path, f"{refuses}\n{VENV}", "--cpu", TORCH_INDEX_URL="")
    first = done.stderr.partition("1/3")[2].partition("2/3")[0]
    assert "brings CUDA: about 3 GB to download, 8 GB on disk" in first, done.stderr


def test_a_long_step_says_that_it_goes_on(tmp_path: Path) -> None:
    slow = 'if [ "$2" = pip ]; then sleep 0.7; fi'
    done = set_up(tmp_path, f"{slow}\n{VENV}", "--cpu", GPT1_DS_SETUP_EVERY="0.2")
    during = done.stderr.partition("2/3")[2].partition("3/3")[0]
    assert re.search(r"^ *\d+ s    \.venv holds \d+ MB of 3 GB$", during, re.MULTILINE), done.stderr
