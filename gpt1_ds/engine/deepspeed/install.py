"""The one place where a DeepSpeed engine is patched, as far as train.deepspeed_patches allows.

    none    nothing: the library as it comes, which hangs or is wrong on some layouts (guides/concepts.md)
    fixes   what correct numbers and a known phase need
    fast    also what only saves time

launcher/libraries.py patches imports, before there is an engine. Where an update is rejected, at any level, is
zero.py. register.py lists all that is relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from torch.nn import Parameter

from gpt1_ds.config.sections import Patches
from gpt1_ds.engine.base import StepOutcome
from gpt1_ds.engine.deepspeed import overlap
from gpt1_ds.engine.deepspeed.bf16 import patch_bf16_optimizer
from gpt1_ds.engine.deepspeed.pipeline import patch_pipeline, traced
from gpt1_ds.engine.deepspeed.settings import mask_norms_on_device
from gpt1_ds.engine.deepspeed.zero import reads_norm, spare_stage_3_reads
from gpt1_ds.engine.gradient_norm import decides_on_device
from gpt1_ds.engine.process_groups import ProcessGroups

Trace = Callable[[str], None]  # is called with the phase that begins


def install(
    engine: DeepSpeedEngine,
    level: Patches,
    groups: ProcessGroups,
    outcome: StepOutcome,
    trace: Trace,
    tied: Collection[Parameter] = (),
) -> overlap.Reduction | None:
    """Patches this DeepSpeed engine alone. Returns the reduction of gradients that overlaps the backward pass, whose
    `begin` has to be called before that of a step's last micro-batch; None where none does. `tied` are weights whose
    gradients pipeline stages sum first.
    """
    if level == "none":
        return None
    fast = level == "fast"
    if engine.pipeline_parallelism:
        patch_pipeline(engine, trace, fast)
    else:  # DeepSpeed reduces gradients inside its backward pass
        engine.allreduce_gradients = traced(trace, "reduction of gradients", engine.allreduce_gradients)
    if not fast:
        return None
    device = torch.device(engine.device)
    patch_bf16_optimizer(engine, groups.layout.data)
    if decides_on_device(device):
        _read_norm_once(engine.optimizer, outcome)
    return overlap.overlap(engine, device, groups.data_group, tied)


def _read_norm_once(optimizer: Any, outcome: StepOutcome) -> None:
    """Removes reads of the host, each of which waits for the device. Where DeepSpeed reads the norm before an update,
    the loss is read with it, once; BF16_Optimizer and ZeRO 0 need no read (bf16.py, gradient_norm.py).
    """
    mask_norms_on_device()
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        spare_stage_3_reads(optimizer)
    if reads_norm(optimizer):
        optimizer.check_overflow = _no_search
        outcome.read_before_updates(optimizer)


def _no_search(partition_gradients: bool = True) -> None:
    """Replaces DeepSpeed's search for a gradient that is not finite: the norm, which is read anyway, is not then."""
