"""The DeepSpeed configuration, inside the envelope that was shown to compute the right numbers; and what holds for the
whole process, whichever engine it builds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.config import Config
from gpt1_ds.config.parallel import BUCKET_ELEMENTS


def set_timeouts(timeout: timedelta) -> None:
    """Gives every process group this timeout, those that DeepSpeed made included."""
    set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # as torch 2.15 asks
    for group in list(dist.distributed_c10d._world.pg_map):
        set_timeout(timeout, group)


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


def set_micro_batches(engine: Any, count: int) -> None:
    """Lets the steps of a DeepSpeed engine have so many micro-batches of a rank from now on. Outside pipelines it
    counts micro-batches over all steps, and takes each multiple of `count` for the last of a step: it begins anew.
    """
    engine.set_train_batch_size(count * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
    engine.micro_steps = 0


def ds_config(config: Config, data_size: int) -> dict[str, Any]:
    """Returns what `deepspeed.initialize` is given for `data_size` data-parallel ranks."""
    train, parallel = config.train, config.parallel
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": train.global_batch // (train.micro_batch * data_size),
        "train_batch_size": train.global_batch,
        # at stage 0 DeepSpeed neither reports a norm nor notices a NaN: plain.py does both itself
        "gradient_clipping": config.optimizer.clip if parallel.zero else 0.0,
        "zero_optimization": {
            "stage": parallel.zero,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "overlap_comm": parallel.zero == 3,  # CUDA streams; engine/deepspeed/overlap.py turns it on below stage 3
        },
        "zero_allow_untested_optimizer": True,  # ours (engine/optimizer.py)
        # reentrant checkpointing and partitioned activations are the traps that run and are wrong
        "pipeline": {"use_reentrant": False, "pipe_partitioned": False, "grad_partitioned": False},
        "timers": {"throughput": {"enabled": False}},  # it synchronises the device twice per micro-step
        "steps_per_print": None,
    }
    if train.precision == "bf16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        # else gradients summed up in fp32 are rounded to bf16 to be reduced, even over one rank
        settings["communication_data_type"] = "fp32"
    if train.precision == "fp16":
        settings["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 1}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    zero = {**settings["zero_optimization"], **parallel.deepspeed.get("zero_optimization", {})}
    return {**settings, **parallel.deepspeed, "zero_optimization": zero}
