"""A process starts on a GPU host as on any other: silent, without a compiler, without CUDA before it forks ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILERS = ("nvcc", "g++", "gcc", "c++", "cc", "clang", "clang++", "ninja", "hipcc")
PARENT = """
import sys
import gpt1_ds.launcher.preload
import torch
from deepspeed.accelerator import get_accelerator
assert get_accelerator().device_name() == "cuda"
assert not torch.cuda.is_initialized(), "ranks that are forked now could not use CUDA"
"""
RANK = """
from gpt1_ds.launcher import libraries
libraries.load()
from tools.fakecuda import ranks, steps
overrides = ["model.layers=1", "model.width=64", "model.heads=4", "model.context=32", "train.precision=bf16"]
ranks.run(steps.step, [*overrides, "train.global_batch=2", "train.micro_batch=2"], 1)
"""


@pytest.mark.parametrize("program", [PARENT, RANK], ids=["launcher", "rank"])
def test_a_start_is_silent_and_compiles_nothing(program: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in COMPILERS:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {started}\nexit 1\n')
        (folder / name).chmod(0o755)
    environment = {
        **os.environ,
        **{"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cuda"},
        **{"TORCH_EXTENSIONS_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)},
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert not started.exists(), started.read_text()
