"""The look of all figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_home_that_may_not_be_written_is_no_news(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "file")}
    command = [sys.executable, "-c", "from gpt1_ds.report.figures import set_up; set_up()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
