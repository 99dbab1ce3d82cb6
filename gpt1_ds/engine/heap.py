"""glibc's heap on a CPU rank: what a step frees is kept for the next one, what no step can use goes back."""

from __future__ import annotations

import contextlib
import ctypes

from gpt1_ds.common.memory import resident_bytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
SPARE = 2  # times the memory that the first step freed: what may be kept


def keep_freed_blocks() -> None:
    """glibc hands every large tensor back to the system when it is freed and pays page faults for the next one: a
    quarter of a step of a small model. Keep such blocks instead."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)  # smaller blocks come from the heap
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)  # and the heap does not shrink


class Heap:
    """Large blocks among small ones that live longer leave holes in which nothing large fits, so that the heap grows:
    from 0.5 GiB to 5 GiB in 2,000 steps of a small GPT-2 on two ranks.
    """

    def __init__(self) -> None:
        self._limit = self._freed = 0

    def trim(self) -> None:
        """Between two steps: give free pages back where there are more of them than steps need."""
        before = resident_bytes()
        if before <= self._limit:
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        after = resident_bytes()
        self._freed = self._freed or before - after
        self._limit = after + SPARE * self._freed
