"""The line that says how a run that was stopped continues, and what becomes of output that nobody takes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpt1_ds import cli

ARGUMENTS = ["pretrain", "-c", "my cluster.yaml", "data.path=data/it's", "--nproc", "2"]
QUOTED = """pretrain -c 'my cluster.yaml' 'data.path=data/it'"'"'s' --nproc 2"""


def ended(code: int, monkeypatch: pytest.MonkeyPatch, overrides: Sequence[str] = ARGUMENTS) -> int:
    monkeypatch.setattr(cli, "parse", lambda arguments: argparse.Namespace(command=lambda options: code))
    return cli.main(overrides)


@pytest.mark.parametrize(
    ("typed", "original", "program"),
    [
        ("bin/gpt1-ds", ["python", "bin/gpt1-ds"], "gpt1-ds"),
        (".venv/bin/gpt1-ds", [".venv/bin/python", ".venv/bin/gpt1-ds"], ".venv/bin/gpt1-ds"),
        ("gpt1_ds/__main__.py", ["python3", "-m", "gpt1_ds"], "python3 -m gpt1_ds"),
    ],
)
def test_a_run_to_be_continued_names_the_command(
    typed: str,
    original: list[str],
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    on_path = tmp_path / "bin" / "gpt1-ds"
    on_path.parent.mkdir()
    on_path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(sys, "argv", [str(on_path) if typed.startswith("bin/") else typed, *ARGUMENTS])
    monkeypatch.setattr(sys, "orig_argv", [*original, *ARGUMENTS])
    assert ended(75, monkeypatch) == 75
    assert capsys.readouterr().err == f"to continue: {program} {QUOTED}\n"


def test_a_reader_that_is_gone_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C also ends the `tee` of `2>&1 | tee`."""
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", pipe)
    assert ended(75, monkeypatch) == 75
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_others_do_not(code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(code, monkeypatch) == code
    assert capsys.readouterr().err == ""


def test_a_job_that_another_one_continues_tells_nobody_to_type_its_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(75, monkeypatch, ["slurm", "end", "runs/a", "--job", "7", "--status", "0"]) == 75
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("code", "told"), [(0, 2), (75, 75)])
def test_output_that_is_not_taken_is_told(
    code: int, told: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When Python ends it would be a traceback, and exit code 120."""
    with open("/dev/full", "w") as full:
        full.write("what a command prints\n")
        monkeypatch.setattr(sys, "stdout", full)
        assert ended(code, monkeypatch) == told
    assert capsys.readouterr().err.endswith("gpt1-ds: standard output: no space left on the device; free some\n")


@pytest.mark.parametrize(("code", "told"), [(0, 1), (75, 75)])
def test_output_whose_reader_is_gone_is_dropped(code: int, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        pipe.write("what a command prints\n")
        monkeypatch.setattr(sys, "stdout", pipe)
        assert ended(code, monkeypatch) == told
