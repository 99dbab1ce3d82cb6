"""Ranks that another launcher started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.helpers.processes import wait_for

AGENT = """import subprocess, sys
rank = "from gpt1_ds.launcher import launch; launch.start('tests.unit.launcher.test_launch:live', (sys.argv[1],), None)"
subprocess.run([sys.executable, "-c", f"import sys; {rank}", sys.argv[1]])
"""


def live(folder: str) -> int:
    Path(folder, "pid").write_text(str(os.getpid()))
    time.sleep(120)
    return 0


def test_a_rank_does_not_outlive_the_agent_of_torchrun(tmp_path: Path) -> None:
    variables = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], env=variables, cwd=Path(__file__).parents[3])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        rank = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    rank.wait(timeout=10)
    assert not rank.is_running()
