"""What a rank's device has and holds."""

from __future__ import annotations

import torch
import torch.distributed as dist

from gpt1_ds.common.memory import resident_bytes
from gpt1_ds.engine.base import Engine
from gpt1_ds.tracking import throughput


def held_bytes(device: torch.device) -> int:
    """Returns the memory in use now: the allocator's on a GPU, elsewhere what is resident of this process."""
    return torch.cuda.memory_allocated() if device.type == "cuda" else resident_bytes()


def peak_memory_gib(engine: Engine) -> float:
    """Returns the peak memory of the rank that held most, in GiB; all ranks call this."""
    cuda = engine.device.type == "cuda"
    here = torch.cuda.max_memory_allocated() / 2**30 if cuda else throughput.peak_process_gib()
    most = torch.tensor(here, dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=engine.groups.control_group)
    return float(most)


def peak_tflops(device: torch.device, precision: str) -> float | None:
    """Returns the peak of a GPU at `train.precision`; None where it is not known."""
    return throughput.peak_tflops_of(torch.cuda.get_device_name(), precision) if device.type == "cuda" else None
