"""Tests on a fake GPU: collected only where torch has CUDA, Triton is there, and tools/fakecuda.sh compiled its shim.

What they cannot see: values, what cuBLAS, cuDNN and NCCL do, races between streams, real speed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from gpt1_ds.launcher.accelerator import has_cuda_build

SHIM = Path(os.environ.get("FAKECUDA_SHIM", Path(sys.prefix, "fakecuda.so")))  # as tools/fakecuda/device.py says
READY = has_cuda_build() and importlib.util.find_spec("triton") is not None and SHIM.exists()
collect_ignore_glob = [] if READY else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _libraries() -> None:
    """Loaded once: every rank is forked from this process."""
    from tools.fakecuda import ranks

    ranks.load()
