"""Importing the libraries does not ask CUDA for devices: no fork of a process that has asked can use one. It is done
once: what a process has made since then can be freed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

from gpt1_ds.common import memory
from gpt1_ds.launcher import libraries


@pytest.fixture
def without_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host of two GPUs, on which NVML fails; asking CUDA is an error."""

    def ask_cuda() -> int:
        raise AssertionError("CUDA was asked: every fork of this process is a bad one")

    for name in ("nvidia0", "nvidia3", "nvidiactl"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(memory, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: -1)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", ask_cuda, raising=False)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("without_nvml")
@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("0,1", 2), ("0,5", 1), ("GPU-a1", 1), ("", 0)])
def test_files_are_counted_where_nvml_fails(visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with libraries.counted_devices():
        assert (torch.cuda.device_count(), torch.cuda.is_available()) == (count, count > 0)


@pytest.mark.usefixtures("without_nvml")
def test_whoever_uses_cuda_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with libraries.counted_devices():
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(AssertionError, match="CUDA was asked"):
            torch.cuda.device_count()
    monkeypatch.undo()


@pytest.mark.usefixtures("without_nvml")
def test_nothing_is_counted_afterwards_or_where_nvml_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.cuda._device_count_nvml
    with libraries.counted_devices():
        assert torch.cuda._device_count_nvml is not before
    assert torch.cuda._device_count_nvml is before
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 8)
    with libraries.counted_devices():
        assert torch.cuda.device_count() == 8


@pytest.mark.usefixtures("without_nvml")
def test_loading_counts_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the libraries ask for while they are imported; they are imported already here."""
    asked = []
    real = libraries._nothing_compiled
    monkeypatch.setattr(libraries, "_nothing_compiled", lambda: asked.append(torch.cuda.device_count()) or real())
    libraries._load_once.cache_clear()
    libraries.load()
    assert asked == [2]


def test_what_was_made_since_is_freed() -> None:
    """An engine is in circles of references, which a collector alone finds."""

    class Engine:
        def __init__(self) -> None:
            self.itself = self

    libraries.load()
    engine = weakref.ref(Engine())
    libraries.load()
    gc.collect()
    assert engine() is None


def test_a_failed_import_leaves_the_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went wrong is told through it."""
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match="deepspeed"):
        libraries._load_once.__wrapped__()
    assert logging.root.manager.disable == logging.NOTSET


def test_a_deleted_current_folder_is_an_error_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(FileNotFoundError):
        libraries.load()


def test_threads_that_load_leave_the_output_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes while the first one loads, and would end after it."""
    real, inside, second_is_inside = libraries._nothing_compiled, list[str](), threading.Event()

    def wait_for_the_other() -> contextlib.AbstractContextManager[None]:
        inside.append(threading.current_thread().name)
        if len(inside) == 1:
            second_is_inside.wait(0.3)
        else:
            second_is_inside.set()
            first.join(10)
        return real()

    monkeypatch.setattr(libraries, "_nothing_compiled", wait_for_the_other)
    before = sys.stdout, os.fstat(2).st_ino
    libraries._load_once.cache_clear()
    first, second = (threading.Thread(target=libraries.load) for _ in range(2))
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join()
    assert (sys.stdout, os.fstat(2).st_ino) == before
    assert len(inside) == 1


@pytest.mark.parametrize("maker", ["nanobind", "pybind11_builtins"])
def test_what_is_frozen_is_freed_at_the_end_where_triton_tells_of_what_is_not(maker: str) -> None:
    program = f"""
import sys, types
from gpt1_ds.launcher import libraries

class Function:
    def __del__(self):
        print("freed")

Function.__module__ = {maker!r}
module = types.ModuleType("triton._C.libtriton")
module.getenv = Function()
module.getenv.itself = module.getenv
sys.modules[module.__name__] = module
libraries.freeze()
del module, sys.modules["triton._C.libtriton"]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["freed"] if maker == "nanobind" else [])
