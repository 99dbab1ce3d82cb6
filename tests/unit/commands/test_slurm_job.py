"""What a job of an array asks about its own run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main


def test_a_line_of_a_manifest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its arguments are ended by NUL; what is no line end in a JSON file ends none."""
    (tmp_path / "runs").write_text('["pretrain", "run.name=a\u2028b"]\n["pretrain", "-c", "c d"]\n', encoding="utf-8")
    assert main(["slurm", "line", str(tmp_path / "runs"), "1"]) == 0
    assert capfd.readouterr().out == "pretrain\0-c\0c d\0"


@pytest.mark.parametrize("name", ["gone", ".", "binary"])
def test_a_manifest_that_cannot_be_read_is_one_line(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\n")
    assert main(["slurm", "line", str(tmp_path / name), "0"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "cannot be read: " in line
