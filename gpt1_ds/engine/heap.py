"""glibc's heap on a CPU rank: what a step frees is kept for the next one, what no step can use goes back."""

from __future__ import annotations

import contextlib
import ctypes

from gpt1_ds.common.memory import resident_bytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
SPARE = 2  # times the memory in use: what may be kept


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
        self._limit = 0

    def trim(self) -> None:
        """Between two steps: give free pages back where memory is much more than at the first call."""
        self._limit = self._limit or SPARE * resident_bytes()
        if resident_bytes() > self._limit:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            self._limit = max(self._limit, SPARE * resident_bytes())  # what is in use has grown
