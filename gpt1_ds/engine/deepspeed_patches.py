"""Every private thing of DeepSpeed, Megatron-core and torch that this package relies on: why, and what shows it.

Read in DeepSpeed 0.19.8, Megatron-core 0.16.1 and torch 2.13.0. tests/unit/engine/test_deepspeed_patches.py fails
where an installed version lacks one of them, and says which of our modules to read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

_OPTIMIZERS = "deepspeed.runtime"


@dataclass(frozen=True)
class Private:
    """`names` are attributes of `owner` (a class or a module), or set by its methods on themselves."""

    owner: str
    names: tuple[str, ...]
    user: str  # our module
    why: str
    test: str  # fails without it


RELIED_ON = (
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        (
            *("update_hp_grads", "clear_hp_grads", "clear_lp_grads", "get_grads_for_norm", "update_lp_params"),
            *("fp32_groups_gradients", "fp32_groups_has_gradients", "fp32_groups_gradients_flat", "_global_grad_norm"),
            *("bf16_groups", "bf16_groups_flat", "bf16_partitioned_groups", "fp32_groups_flat_partition", "clip_grad"),
            *("real_dp_process_group", "nccl_start_alignment_factor", "allgather_bucket_size"),
            *("fp32_groups_gradient_flat_partition", "_lazy_init_hp_params_optimizer_state"),
            *("dp_process_group", "mpu"),
        ),
        "engine/bf16_optimizer_patch.py",
        "redundant passes over the gradients are removed",
        "tests/parallel/test_bf16_optimizer_patch.py",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("mpu", "norm_type", "get_grads_for_norm"),
        "engine/update_filter.py",
        "an update is rejected as if its norm were not finite",
        "tests/parallel/test_nonfinite.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
        ("_get_norm_groups",),
        "engine/update_filter.py",
        "the same under ZeRO 3",
        "tests/parallel/test_nonfinite.py",
    ),
    Private(
        f"{_OPTIMIZERS}.utils",
        ("all_gather_dp_groups", "combine_grad_norm_groups", "get_global_norm_of_tensors"),
        "engine/bf16_optimizer_patch.py, engine/update_filter.py",
        "what the patched methods would have called",
        "tests/parallel/test_bf16_optimizer_patch.py",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("bf16_groups", "fp32_groups_gradients_flat"),
        "engine/overlap.py",
        "gradients are reduced while the backward pass computes others",
        "tests/parallel/test_overlapped_steps.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        (
            *("overlap_comm", "average_tensor", "reduction_stream", "reduce_bucket_size", "reduce_ipg_grads"),
            *("overlapping_partition_gradients_reduce_epilogue", "independent_gradient_partition_epilogue"),
            *("contiguous_gradients", "process_gradients", "reduce_gradients", "get_gradient_for_reduction"),
            *("reduce_ready_partitions_and_remove_grads", "set_gradient_accumulation_boundary", "bit16_groups"),
        ),
        "engine/zero_patches.py",
        "the host waits after each backward pass; large gradients are freed too early; pipelines do not overlap",
        "tests/parallel/test_overlapped_steps.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
        (
            *("reduce_and_partition_stream", "parameter_offload", "_get_norm_groups", "_post_step", "fp16_groups"),
            *("averaged_gradients", "model_parallel_rank", "dp_process_group", "_model_parallel_all_reduce"),
            "persistent_parameters",
        ),
        "engine/zero_patches.py",
        "the host waits after each backward pass, for the norm, and for weights that are kept whole",
        "tests/parallel/test_overlapped_steps.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.parameter_offload",
        ("__allgather_stream",),
        "engine/zero_patches.py",
        "weights are gathered after the update that writes them",
        "tests/fakecuda/test_fake_overlap.py",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("fp32_groups_gradients_flat", "fp32_groups_has_gradients", "clear_lp_grads", "exit_backward"),
        "engine/bf16_optimizer_patch.py, engine/micro_batch_graphs.py",
        "a CUDA graph repeats what the device does of a backward pass; what the host does is done beside it",
        "tests/parallel/test_graphed_steps.py",
    ),
    Private(
        "deepspeed.utils.tensor_fragment",
        ("lp_fragment",),
        "engine/bf16_optimizer_patch.py",
        "what it keeps of autograd's record holds the nodes of gradients in the stream of the engine's construction",
        "tests/parallel/test_graphed_steps.py",
    ),
    Private(
        f"{_OPTIMIZERS}.utils",
        ("mask_nan_or_inf_with_val_inplace",),
        "engine/deepspeed_patches.py",
        "a norm that is not finite is marked without a copy from the host",
        "tests/unit/engine/test_deepspeed_patches.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        ("check_overflow",),
        "engine/base.py",
        "ZeRO 1 and 2 read once, before an update, what they need to know",
        "tests/parallel/test_nonfinite.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        (
            *("scaled_global_norm", "get_grad_norm_direct", "averaged_gradients", "params_in_partition"),
            *("bit16_groups", "model_parallel_group"),
        ),
        "engine/pipeline_patches.py, engine/update_filter.py",
        "stages with a different number of parameter groups would hang in the reduction of the norm",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        ("bit16_groups", "single_partition_of_fp32_groups", "update_lp_params", "loss_scaler"),
        "engine/master_weights.py",
        "master weights are saved, loaded and initialised where ZeRO 1 and 2 keep them",
        "tests/parallel/test_resume_matrix.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
        (
            *("fp16_groups", "grad_position", "get_param_id", "fp32_partitioned_groups_flat", "persistent_parameters"),
            *("_partition_all_parameters", "_reassign_or_swap_out_partitioned_parameters"),
        ),
        "engine/master_weights.py",
        "the same under ZeRO 3",
        "tests/parallel/test_resume_matrix.py",
    ),
    Private(
        "deepspeed.utils.mixed_precision_linkage",
        ("_hp_mapping",),
        "engine/master_weights.py",
        "which elements of the flat master weights belong to a parameter",
        "tests/parallel/test_resume_matrix.py",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.partition_parameters",
        ("ds_persist",),
        "engine/master_weights.py",
        "weights that ZeRO 3 keeps whole are compared between ranks",
        "tests/parallel/test_compared_replicas.py",
    ),
    Private(
        f"{_OPTIMIZERS}.pipe.engine.PipelineEngine",
        (
            *("_INSTRUCTION_MAP", "_exec_backward_pass", "pipe_buffers", "grad_layer", "using_bf16_optimizer"),
            *("reset_activation_shape", "_aggregate_total_loss", "_loss_stage_global_rank", "dp_group_loss", "grid"),
        ),
        "engine/pipeline_patches.py, engine/pipelined.py",
        "one backward pass for all outputs of a stage; gradients of tied weights are summed where they are kept",
        "tests/parallel/test_shared_graph.py",
    ),
    Private(
        f"{_OPTIMIZERS}.engine.DeepSpeedEngine",
        ("_running_engine_backward", "buffered_allreduce_fallback", "allreduce_gradients"),
        "engine/pipeline_patches.py, engine/bf16_optimizer_patch.py, engine/plain.py",
        "a backward pass of our own; no reduction over one rank; the watchdog hears of the reduction",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        f"{_OPTIMIZERS}.pipe.module.PipelineModule",
        ("_partition_layers", "_set_bounds", "_topo", "get_tied_weights_and_groups"),
        "engine/pipelined.py",
        "stages are cut by FLOPs",
        "tests/parallel/test_scale.py",
    ),
    Private(
        "megatron.core.parallel_state",
        ("_GLOBAL_MEMORY_BUFFER", "_set_global_memory_buffer"),
        "engine/deepspeed_patches.py",
        "sequence-parallel regions gather into a buffer that Megatron's own set-up, which is not used, would make",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        "megatron.core.tensor_parallel.layers.RowParallelLinear",
        ("_forward_impl",),
        "model/layers.py",
        "Megatron passes no group there, which warns on rank 0 alone",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        "torch.distributed.distributed_c10d",
        ("_world", "_set_pg_timeout"),
        "engine/deepspeed_patches.py",
        "groups that DeepSpeed makes would wait for half an hour",
        "tests/faults/test_watch.py",
    ),
    Private(
        "torch",
        ("_fused_adamw_",),
        "engine/optimizer.py",
        "a fused update goes block by block through the cache",
        "tests/unit/engine/test_optimizer.py",
    ),
)


def set_timeouts(timeout: timedelta) -> None:
    """Of every process group, those that DeepSpeed made included."""
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timeout, group)


def mask_norms_on_device() -> None:
    """DeepSpeed marks a norm that is not finite by a number that it copies from the host: the host waits for it."""
    from deepspeed.runtime import utils
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    for module in (utils, stage_1_and_2, stage3):
        module.mask_nan_or_inf_with_val_inplace = _mask


def _mask(norm: Tensor, device: object = None, val: float = -1.0) -> None:
    norm.masked_fill_(~torch.isfinite(norm), val)


def allow_sequence_parallel() -> None:
    """Make the buffer that Megatron's sequence-parallel regions gather into."""
    from megatron.core import parallel_state

    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()
