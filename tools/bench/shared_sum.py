"""A contender of row 12, not a part of the product: sums over the ranks of one host through shared memory.

All ranks map one file of /dev/shm: for every rank a counter in a cache line of its own, and a row of slots of SLOT
bytes, one per part. A tensor goes through in pieces, each cut into as many parts as there are ranks; rank r sums part r
(reduce-scatter), and all fetch the sums (all-gather):

    1. copy parts other than the own one into the own row; count up; wait for all
    2. own part of the tensor + the same part in the others' rows -> own part of the own row; count up; wait for all
    3. copy every part from the row of the rank that summed it

No slot is written while another rank still reads it: slot r of row r is written in 2, after all have counted up in 1
and so have finished 3 of the piece before; the others are written in 1, after all have finished 2 of the piece before.
That a counter is seen only after what was written before it is the order of stores of x86.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

SLOT = 1 << 19  # bytes: what is passed on stays in the second-level cache
LINE = 64  # bytes between counters
SPINS = 2000  # looks at the counters before sleeping between them
PATIENCE = 60.0  # seconds


class SharedSum:
    """One per rank of a group whose ranks all live on this host; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = group.rank(), group.size()
        box = [f"/dev/shm/gpt1-ds-sum-{os.getpid()}-{id(self)}"]
        dist.broadcast_object_list(box, group=group, group_src=0)
        place, bytes_ = Path(box[0]), LINE * self.size + SLOT * self.size**2
        if self.rank == 0:
            place.write_bytes(bytes(bytes_))
        dist.barrier(group=group)
        with place.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), bytes_)
        dist.barrier(group=group)
        if self.rank == 0:
            place.unlink()  # the mappings keep it
        whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.slots = whole[LINE * self.size :].view(self.size, self.size, SLOT)  # row, part
        self.counters = memoryview(self.memory)[: LINE * self.size].cast("q")[:: LINE // 8]
        self.count = 0

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over the ranks, in place; all ranks get the same bits."""
        assert tensor.is_contiguous(), "a slot holds consecutive bytes"
        flat = tensor.view(-1)
        slots = self.slots.view(tensor.dtype)
        most = self.size * slots.shape[-1]
        for start in range(0, flat.numel(), most):
            self._piece(flat[start : start + most], slots)

    def _piece(self, piece: Tensor, slots: Tensor) -> None:
        parts = piece.tensor_split(self.size)
        own, others = self.rank, [r for r in range(self.size) if r != self.rank]
        for r in others:
            slots[own, r, : len(parts[r])].copy_(parts[r])
        self._meet()
        mine = slice(len(parts[own]))
        total = torch.add(parts[own], slots[others[0], own, mine], out=slots[own, own, mine])
        for r in others[1:]:
            total.add_(slots[r, own, mine])
        self._meet()
        for r, part in enumerate(parts):
            part.copy_(slots[r, r, : len(part)])

    def _meet(self) -> None:
        """Count up and wait until every rank has."""
        self.count += 1
        self.counters[self.rank] = self.count
        for r in range(self.size):
            looks = 0
            while self.counters[r] < self.count:
                looks += 1
                if looks < SPINS:
                    os.sched_yield()
                else:
                    time.sleep(5e-5)
                    assert looks < SPINS + PATIENCE / 5e-5, f"rank {r} does not come"
