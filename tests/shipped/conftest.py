"""The program in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from tools.cluster import Result


@pytest.fixture
def gpt1(in_folder: Path, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run the program in an empty folder of its own; ranks come from the warm fork server."""

    def run(*arguments: str) -> Result:
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run
