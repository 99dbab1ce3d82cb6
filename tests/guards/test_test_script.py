"""tools/test.sh fails in CI where the environment of the fake GPU cannot be made, and says so elsewhere; so does the
twin of a GPU machine.
"""

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
    for name in ("test.sh", "fakecuda.sh", "constraints.txt", "twin.sh", "twin.txt"):
        shutil.copy(TOOLS / name, tmp_path / "tools" / name)
    shutil.copytree(TOOLS / "fakecuda", tmp_path / "tools" / "fakecuda", ignore=shutil.ignore_patterns("*.py*"))
    (tmp_path / "tools" / "setup.sh").write_text("")
    for name in ("ruff", "mypy", "python"):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text('#!/bin/sh\necho "$2" >>asked\n[ "$2" != venv ]\n')  # no virtual environment can be made
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("ci", "code"), [("true", 69), ("", 0)])
def test_an_environment_that_cannot_be_made(checkout: Path, ci: str, code: int) -> None:
    environment = {**os.environ, "CI": ci}
    done = subprocess.run(["bash", "tools/test.sh"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(CANNOT if ci else "tests/fakecuda was not run: "), done.stderr
    assert done.stderr.count(CANNOT) == bool(ci)
    asked = (checkout / "asked").read_text().split()
    assert asked.count("venv") == (2 if ci else 0), "while the tests run, and once more to say why not"


def test_a_person_is_told_why(checkout: Path) -> None:
    environment = {**os.environ, "CI": ""}
    done = subprocess.run(["bash", "tools/fakecuda.sh"], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith(CANNOT)


def test_why_pip_has_no_torch(checkout: Path) -> None:
    pip = "echo 'ERROR: The conflict is of a constraint.' >&2; exit 1"
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\nmkdir -p "$4/bin"\nprintf "%s\\n" "#!/bin/sh" "{pip}" >"$4/bin/python"\nchmod +x "$4/bin/python"\n'
    )
    done = subprocess.run(["bash", "tools/fakecuda.sh"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 69
    assert "could not be installed (The conflict is of a constraint.); set TORCH_INDEX_URL" in done.stderr, done.stderr


@pytest.mark.parametrize("version", ["3 12", "3 11"])
def test_a_twin_has_one_version_of_each_package_and_needs_python_312(checkout: Path, version: str) -> None:
    python = checkout / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {version}\n')  # no virtual environment can be made
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python)}
    command = ["bash", "tools/twin.sh", "2.11.0"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 69, done.stderr
    said = done.stderr.splitlines()[-1]
    if version == "3 11":
        assert said == f"{python} is no Python 3.12; set PYTHON=..."
        return
    assert said == "no twin is made: no virtual environment could be made"
    pins = [line.partition("==") for line in (checkout / ".venv-twin-2.11.0.txt").read_text().splitlines()]
    found = {name: version for name, _, version in pins if version}
    assert len(found) == sum(bool(version) for *_, version in pins), "two versions of one package"
    assert found["torch"] == "2.11.0"
    assert f"numpy=={found['numpy']}" in (TOOLS / "twin.txt").read_text()
    assert f"deepspeed=={found['deepspeed']}" in (TOOLS / "constraints.txt").read_text()
