"""The sandbox itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.slurm.conftest import SANDBOX


def test_a_folder_too_long_for_sockets_is_refused(sandbox: Path, tmp_path: Path) -> None:
    """Without a word SLURM would hold its jobs: `launch failed requeued held`."""
    folder = tmp_path / ("x" * 80)
    done = subprocess.run(["bash", SANDBOX, "up", str(folder)], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{folder}: is too long by " in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()
