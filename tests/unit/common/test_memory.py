"""What says that memory ran out."""

from __future__ import annotations

import pytest

from gpt1_ds.common.memory import kernel_kills, shortage


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 8.00 PiB for an array"),
        OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_each_library_is_understood(error: BaseException) -> None:
    line = shortage(error) or ""
    assert line.startswith("memory ran out on ")
    assert line.endswith(
        "; use a smaller train.micro_batch, train.recompute=block or more ranks; `gpt1-ds plan` says what fits"
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not fit"), ValueError("CUDA out of memory"), OSError(28, "full")]
)
def test_other_errors_are_not(error: BaseException) -> None:
    assert shortage(error) is None


def test_the_kernel_counts() -> None:
    assert kernel_kills() >= 0
