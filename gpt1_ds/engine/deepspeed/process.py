"""This module sets what holds for the whole process, whichever engine it builds."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


def set_timeouts(timeout: timedelta) -> None:
    """Gives every process group this timeout, those that DeepSpeed made included."""
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timeout, group)


def mask_norms_on_device() -> None:
    """Marks a norm that is not finite on the device. DeepSpeed copies the mark from the host, which waits for it."""
    from deepspeed.runtime import utils
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    for module in (utils, stage_1_and_2, stage3):
        module.mask_nan_or_inf_with_val_inplace = _mask


def _mask(norm: Tensor, device: object = None, val: float = -1.0) -> None:
    norm.masked_fill_(~torch.isfinite(norm), val)


def allow_sequence_parallel() -> None:
    """Makes the buffer that Megatron's sequence-parallel regions gather into."""
    from megatron.core import parallel_state

    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()
