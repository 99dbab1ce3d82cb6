"""What a person is told where torch cannot compile."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch._inductor import config
from torch._inductor.exc import InductorError

from gpt1_ds.common.errors import UserError, WorldError
from gpt1_ds.launcher import launch
from gpt1_ds.model.build import naming_compilation


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # an empty one
    with config.patch({"cpp.cxx": (None, "no-compiler")}), pytest.raises(UserError) as caught, naming_compilation():
        torch.compile(torch.sin)(torch.ones(3))
    assert str(caught.value).startswith("train.compile: torch cannot compile here (No working C++ compiler found in ")
    assert str(caught.value).endswith("); use train.compile=off")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with pytest.raises(WorldError) as caught, naming_compilation():
        raise InductorError(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None)
    assert str(caught.value) == f"{tmp_path}: no space left on the device; free some"


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="of something else"), naming_compilation():
        raise RuntimeError("of something else")


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(NotADirectoryError, match="file/cache"):
        launch.server()
