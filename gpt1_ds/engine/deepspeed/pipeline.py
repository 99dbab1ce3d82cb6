"""Our replacements for some instructions of DeepSpeed's pipeline engine, and for its loss and its gradient norm."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import PipelineEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor

BACKWARD = "backward of micro-batch {}"
PHASES = {
    schedule.LoadMicroBatch: "load of micro-batch {}",
    schedule.RecvActivation: "receiving activations of micro-batch {}",
    schedule.ForwardPass: "forward of micro-batch {}",
    schedule.SendActivation: "sending activations of micro-batch {}",
    schedule.RecvGrad: "receiving gradients of micro-batch {}",
    schedule.BackwardPass: BACKWARD,
    schedule.SendGrad: "sending gradients of micro-batch {}",
    schedule.ReduceTiedGrads: "reduction of tied gradients",
    schedule.ReduceGrads: "reduction of gradients",
    schedule.OptimizerStep: "update",
}


def patch_pipeline(engine: PipelineEngine, trace: Callable[[str], None], fast: bool) -> None:
    """Replaces instructions on this engine alone; with `fast` also those that only save time. `trace` is called with
    the phase of every instruction that begins.
    """
    instructions = {**engine._INSTRUCTION_MAP, schedule.ReduceTiedGrads: _reduce_tied_gradients}
    if fast:
        instructions[schedule.BackwardPass] = _backward_pass
    for kind, phase in PHASES.items():
        instructions[kind] = traced(trace, phase, instructions[kind])
    engine._INSTRUCTION_MAP = instructions
    if fast and not engine.is_last_stage():
        engine._aggregate_total_loss = MethodType(_received_loss, engine)
    if hasattr(engine.optimizer, "scaled_global_norm"):
        engine.optimizer.scaled_global_norm = MethodType(_scaled_global_norm, engine.optimizer)


def traced(trace: Callable[[str], None], phase: str, work: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that reports the phase, then does the work."""

    def run(*arguments: Any, **keywords: Any) -> None:
        trace(phase)
        work(*arguments, **keywords)

    return run


def _backward_pass(engine: PipelineEngine, buffer_id: int) -> None:
    """Runs the backward pass of all outputs of a stage at once. DeepSpeed calls `backward` once for each of them, which
    walks through what they share as often: the right numbers for twice the work.
    """
    outputs = engine.pipe_buffers["outputs"][buffer_id]
    if engine.is_last_stage() or not isinstance(outputs, tuple):
        engine._exec_backward_pass(buffer_id)
        return
    if engine.using_bf16_optimizer:
        engine.optimizer.clear_lp_grads()
    engine._running_engine_backward = True  # DeepSpeed's hooks ask whether it began this pass itself
    try:
        torch.autograd.backward([output for output in outputs if output.is_floating_point()], engine.grad_layer)
    finally:
        engine._running_engine_backward = False
    if engine.using_bf16_optimizer:
        engine.optimizer.update_hp_grads(clear_lp_grads=False)
    engine.pipe_buffers["output_tensors"][buffer_id] = None
    engine.pipe_buffers["outputs"][buffer_id] = None


def _reduce_tied_gradients(engine: PipelineEngine) -> None:
    """Sums the gradient of tied weights over their copies, wherever the optimizer keeps it.

    With fp32 accumulation outside BF16_Optimizer DeepSpeed looks at `.grad`, finds None, and the copies drift apart.
    """
    for weight, group in engine.module.get_tied_weights_and_groups():
        if engine.using_bf16_optimizer:
            gradient = weight._hp_grad
        elif getattr(engine.optimizer, "use_grad_accum_attribute", False):
            gradient = weight.grad_accum
        else:
            gradient = weight.grad
        if gradient is not None:
            dist.all_reduce(gradient, group=group)


def _received_loss(engine: PipelineEngine) -> Tensor:
    """Returns the mean loss that the last stage sends. DeepSpeed copies zeros from the host to receive it into."""
    losses = torch.empty(2, device=engine.device)
    dist.broadcast(losses, engine._loss_stage_global_rank(), group=engine.grid.get_pipe_parallel_group())
    engine.dp_group_loss = losses[0]
    return losses[1]


def _scaled_global_norm(optimizer: DeepSpeedZeroOptimizer, norm_type: int = 2) -> Tensor:
    """Returns ZeRO 1's gradient norm with one reduction over the stages.

    DeepSpeed reduces once per parameter group; a stage that holds the head alone has no bias, hence one group less than
    the others, and would hang them.
    """
    everyone, optimizer.model_parallel_group = optimizer.model_parallel_group, None
    try:
        norms = [
            optimizer.get_grad_norm_direct(optimizer.averaged_gradients[index], optimizer.params_in_partition[index])
            for index in range(len(optimizer.bit16_groups))
        ]
    finally:
        optimizer.model_parallel_group = everyone
    stacked = torch.stack([norm.float() for norm in norms])  # -1 marks a norm that is not finite
    square = torch.where((stacked < 0).any(), torch.inf, stacked.square().sum())
    dist.all_reduce(square, group=everyone)
    return torch.where(torch.isfinite(square), square.sqrt(), -1.0)
