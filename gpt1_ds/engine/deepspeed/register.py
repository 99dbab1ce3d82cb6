"""Every private thing of DeepSpeed, Megatron-core and torch that this program relies on: why, and what shows it.

sources.json has a hash of the source of each function among them, as it was read, and of each function that sets one of
the attributes. Where another version of a library is installed, `check` compares them: patch releases change much.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config.sections import Patches

SOURCES = Path(__file__).with_name("sources.json")
LIBRARIES = {"deepspeed": "deepspeed", "megatron": "megatron-core"}  # module -> package; torch has a range of versions

_OPTIMIZERS = "deepspeed.runtime"


@dataclass(frozen=True)
class Private:
    """`names` are attributes of `owner` (a class or a module), or set by its methods on themselves."""

    owner: str
    names: tuple[str, ...]
    user: str  # our modules
    why: str
    test: str  # fails without it
    level: Literal["fast", "fixes", "reach"] = "reach"  # train.deepspeed_patches that replaces it; reach: it is used


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
        "engine/deepspeed/bf16.py",
        "redundant passes over the gradients are removed",
        "tests/parallel/test_bf16_optimizer.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("mpu", "norm_type", "get_grads_for_norm"),
        "engine/deepspeed/zero.py",
        "an update is rejected as if its norm were not finite",
        "tests/parallel/test_nonfinite.py",
        "fixes",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
        ("_get_norm_groups",),
        "engine/deepspeed/zero.py",
        "the same under ZeRO 3",
        "tests/parallel/test_nonfinite.py",
        "fixes",
    ),
    Private(
        f"{_OPTIMIZERS}.utils",
        ("all_gather_dp_groups", "combine_grad_norm_groups", "get_global_norm_of_tensors"),
        "engine/deepspeed/bf16.py, engine/deepspeed/zero.py",
        "what the patched methods would have called",
        "tests/parallel/test_bf16_optimizer.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("bf16_groups", "fp32_groups_gradients_flat"),
        "engine/deepspeed/overlap.py",
        "gradients are reduced while the backward pass computes others",
        "tests/parallel/test_overlapped_steps.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        (
            *("overlap_comm", "average_tensor", "reduction_stream", "reduce_bucket_size", "reduce_ipg_grads"),
            *("overlapping_partition_gradients_reduce_epilogue", "independent_gradient_partition_epilogue"),
            *("contiguous_gradients", "process_gradients", "reduce_gradients", "get_gradient_for_reduction"),
            *("reduce_ready_partitions_and_remove_grads", "set_gradient_accumulation_boundary", "bit16_groups"),
        ),
        "engine/deepspeed/zero.py, engine/deepspeed/overlap.py",
        "the host waits after each backward pass; large gradients are freed too early; pipelines do not overlap",
        "tests/parallel/test_overlapped_steps.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
        (
            *("reduce_and_partition_stream", "parameter_offload", "_get_norm_groups", "_post_step", "fp16_groups"),
            *("averaged_gradients", "model_parallel_rank", "dp_process_group", "_model_parallel_all_reduce"),
            "persistent_parameters",
        ),
        "engine/deepspeed/zero.py",
        "the host waits after each backward pass, for the norm, and for weights that are kept whole",
        "tests/parallel/test_overlapped_steps.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.parameter_offload",
        ("__allgather_stream",),
        "engine/deepspeed/zero.py",
        "weights are gathered after the update that writes them",
        "tests/fakecuda/test_fake_overlap.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("fp32_groups_gradients_flat", "fp32_groups_has_gradients", "clear_lp_grads", "exit_backward"),
        "engine/deepspeed/bf16.py, engine/deepspeed/micro_batch_graphs.py",
        "a CUDA graph repeats what the device does of a backward pass; what the host does is done beside it",
        "tests/parallel/test_graphed_steps.py",
        "fast",
    ),
    Private(
        "deepspeed.utils.tensor_fragment",
        ("lp_fragment",),
        "engine/deepspeed/bf16.py",
        "what it keeps of autograd's record holds the nodes of gradients in the stream of the engine's construction",
        "tests/parallel/test_graphed_steps.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.utils",
        ("mask_nan_or_inf_with_val_inplace",),
        "engine/deepspeed/settings.py",
        "a norm that is not finite is marked without a copy from the host",
        "tests/unit/engine/deepspeed/test_register.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        ("check_overflow",),
        "engine/deepspeed/install.py",
        "ZeRO 1 and 2 read once, before an update, what they need to know",
        "tests/parallel/test_nonfinite.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        (
            *("scaled_global_norm", "get_grad_norm_direct", "averaged_gradients", "params_in_partition"),
            *("bit16_groups", "model_parallel_group"),
        ),
        "engine/deepspeed/pipeline.py, engine/deepspeed/zero.py",
        "stages with a different number of parameter groups would hang in the reduction of the norm",
        "tests/parallel/test_layouts.py",
        "fixes",
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
        "engine/deepspeed/pipeline.py, engine/pipelined.py",
        "one backward pass for all outputs of a stage; gradients of tied weights are summed where they are kept",
        "tests/parallel/test_shared_graph.py",
        "fixes",
    ),
    Private(
        f"{_OPTIMIZERS}.engine.DeepSpeedEngine",
        ("_running_engine_backward", "buffered_allreduce_fallback"),
        "engine/deepspeed/pipeline.py, engine/deepspeed/bf16.py",
        "a backward pass of our own; no reduction over one rank",
        "tests/parallel/test_layouts.py",
        "fast",
    ),
    Private(
        f"{_OPTIMIZERS}.engine.DeepSpeedEngine",
        ("micro_steps", "set_train_batch_size"),
        "engine/deepspeed/settings.py",
        "the number of micro-batches changes from step to step; DeepSpeed counts them over all steps",
        "tests/parallel/test_batch_warmup.py",
    ),
    Private(
        f"{_OPTIMIZERS}.engine.DeepSpeedEngine",
        ("allreduce_gradients",),
        "engine/deepspeed/install.py",
        "the reduction is reported to the watchdog",
        "tests/parallel/test_layouts.py",
        "fixes",
    ),
    Private(
        f"{_OPTIMIZERS}.pipe.module.PipelineModule",
        ("_partition_layers", "_set_bounds", "_topo", "get_tied_weights_and_groups"),
        "engine/pipelined.py",
        "stages are cut by FLOPs",
        "tests/parallel/test_scale.py",
    ),
    Private(
        f"{_OPTIMIZERS}.bf16_optimizer.BF16_Optimizer",
        ("_hp_grad",),
        "engine/deepspeed/bf16.py, engine/deepspeed/pipeline.py",
        "a weight's fp32 gradient, which tied weights share",
        "tests/parallel/test_layouts.py",
        "fixes",
    ),
    Private(
        "deepspeed.ops",
        ("__compatible_ops__",),
        "launcher/libraries.py",
        "DeepSpeed would compile an extension for collectives of a CPU",
        "tests/shipped/test_program.py",
    ),
    Private(
        "deepspeed.accelerator.cpu_accelerator.CPU_Accelerator",
        ("is_fp16_supported",),
        "launcher/libraries.py",
        "torch computes fp16 without units for it, too",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        "megatron.core.tensor_parallel.layers",
        ("linear_with_grad_accumulation_and_async_allreduce",),
        "launcher/libraries.py",
        "its warning about an environment variable that matters with streams of its own",
        "tests/shipped/test_program.py",
    ),
    Private(
        "megatron.core.parallel_state",
        ("_GLOBAL_MEMORY_BUFFER", "_set_global_memory_buffer"),
        "engine/deepspeed/settings.py",
        "sequence-parallel regions gather into a buffer that Megatron's own set-up, which is not used, would make",
        "tests/parallel/test_layouts.py",
    ),
    Private(
        "megatron.core.tensor_parallel.layers.RowParallelLinear",
        ("_forward_impl",),
        "model/layers.py",
        "torch multiplies in compiled blocks, and in fp32 on a CPU without units for 16 bits",
        "tests/parallel/test_compiled_blocks.py",
    ),
    Private(
        "torch.distributed.distributed_c10d",
        ("_world", "_set_pg_timeout"),
        "engine/deepspeed/settings.py",
        "groups that DeepSpeed makes would wait for half an hour",
        "tests/faults/test_watch.py",
    ),
    Private(
        "torch",
        ("compile",),
        "launcher/libraries.py",
        "functions that are not used are marked for it while libraries are imported, which loads the compiler",
        "tests/shipped/test_program.py",
    ),
    Private(
        "torch",
        ("_softmax_backward_data",),
        "model/kernels/attention_cpu.py",
        "the gradient of a softmax, written into memory that is there",
        "tests/parallel/test_gradients.py",
    ),
    Private(
        "torch._utils",
        ("_flatten_dense_tensors", "_unflatten_dense_tensors"),
        "engine/deepspeed/overlap.py",
        "gradients are copied into one message and stay there",
        "tests/parallel/test_overlapped_steps.py",
    ),
    Private(
        "torch",
        ("_foreach_copy_", "_foreach_add_", "_foreach_mul_", "_foreach_norm"),
        "engine/deepspeed/bf16.py, engine/gradient_norm.py",
        "many tensors are one launch on a GPU",
        "tests/parallel/test_bf16_optimizer.py",
    ),
    Private(
        "torch",
        ("_fused_adamw_",),
        "engine/adamw.py",
        "a fused update goes block by block through the cache",
        "tests/unit/engine/test_optimizer.py",
    ),
)


def check(patches: Patches) -> None:
    """Raises ConfigError where an installed library is not as it was read, and `patches` would replace parts of it."""
    if patches != "none":
        ConfigError.raise_all(
            f"{package} {version(package)} differs from {package} {wanted} in {', '.join(differing[:3])}, which this "
            f"program replaces; pip install {package}=={wanted}, or set train.deepspeed_patches=none"
            for package, (wanted, differing) in compared().items()
            if differing
        )


def compared() -> dict[str, tuple[str, list[str]]]:
    """Returns for each package the version that was read, and the functions that are other ones in the version that is
    installed. Imports nothing where it is the same version.
    """
    found = {}
    for package, facts in json.loads(SOURCES.read_text(encoding="utf-8")).items():
        differing = []
        if version(package) != facts["version"]:
            here = fingerprints(package)
            differing = sorted(name for name, one in facts["functions"].items() if here.get(name) != one)
        found[package] = facts["version"], differing
    return found


def fingerprints(package: str) -> dict[str, str]:
    """Returns a hash of the source of every function of an installed package that is relied on, by its full name."""
    return {
        f"{entry.owner}.{name}": hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
        for entry in RELIED_ON
        if LIBRARIES.get(entry.owner.partition(".")[0]) == package
        for name, function in _functions(owner(entry.owner), entry.names)
    }


def owner(path: str) -> Any:
    """Returns a module, or a class in one. Raises ImportError or AttributeError where it is not there."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name) if name[0].isupper() else importlib.import_module(path)


def _functions(holder: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the functions among `names`, and those of `holder` that set one of the other names as an attribute."""
    functions = {name: one for name, one in vars(holder).items() if inspect.isfunction(inspect.unwrap(one))}
    attributes = "|".join(re.escape(name) for name in names if name not in functions)
    sets = re.compile(rf"\.({attributes})\b(\[[^=\n]*\])?(\.append\(|\s*=[^=])")
    for name, function in functions.items():
        if name in names or (attributes and sets.search(inspect.getsource(function))):
            yield name, function
