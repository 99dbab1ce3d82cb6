"""What files and programs of an NVIDIA driver say, here written by the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpt1_ds.common import memory


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC version: gcc 12.3.0\n",
            "580.65.06",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release\n", "580.82.07"),
        ("NVRM version: 580\n", None),
        (None, "570.124"),
    ],
)
def test_the_version_of_the_driver(
    text: str | None, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 570.124\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setattr(memory, "DRIVER", tmp_path / "version")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if text is not None:
        memory.DRIVER.write_text(text)
    assert memory.driver_version() == version
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA-SMI 9.9 has failed\nexit 9\n")
    memory.DRIVER.unlink(missing_ok=True)
    assert memory.driver_version() is None
