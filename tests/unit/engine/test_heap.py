"""Memory that holes in the heap keep goes back to the system; what a step needs again stays."""

from __future__ import annotations

import multiprocessing

import torch

from gpt1_ds.common.memory import resident_bytes
from gpt1_ds.engine.session import Heap, keep_freed_blocks

MIB = 1 << 20


def _steps(counts: list[int]) -> list[int]:
    """MiB in memory after each step, which fills and frees blocks of 4 MiB, beyond what there was before the first."""
    keep_freed_blocks()
    heap, start, found = Heap(), resident_bytes(), []
    for count in counts:
        blocks = [torch.ones(MIB) for _ in range(count)]
        del blocks
        heap.trim()
        found.append((resident_bytes() - start) // MIB)
    return found


def test_what_no_step_needs_goes_back() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        first, *same, large, again = pool.apply(_steps, ([25] * 6 + [300, 25],))
    assert 80 < first < 130, "a step's blocks are kept for the next one"
    assert min(same) > 80
    assert same[-1] == same[-2] < 2 * first, "where a block fits depends on addresses, but the heap stops growing"
    assert large < 30, "much more is not kept"
    assert 80 < again < 130
