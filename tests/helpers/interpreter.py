"""Triton's interpreter runs kernels on CPU tensors, in processes that say so before they import triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_interpreted(file: str) -> tuple[int, str]:
    """pytest's exit code for `file` in a process of its own that interprets kernels, and the end of what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    older = Path(sys.prefix, "interpreter")  # packages that tools/fakecuda.sh puts there for it; most need none
    environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{older}"}
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=short", file]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout[-4000:] + done.stderr[-1000:]
