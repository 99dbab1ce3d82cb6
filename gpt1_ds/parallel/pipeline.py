"""The pipelined assembly: each rank holds a run of layers; DeepSpeed's 1F1B schedule moves micro-batches through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.cut import pipeline_cuts
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import Config
from gpt1_ds.model.build import ModuleSpec, compile_blocks, module_specs
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import Loss, make_loss
from gpt1_ds.parallel.ds_config import ds_config
from gpt1_ds.parallel.economy import economise
from gpt1_ds.parallel.engine import Engine, MicroBatch, StepResult, Veto
from gpt1_ds.parallel.grid import Grid
from gpt1_ds.parallel.libraries import quiet
from gpt1_ds.parallel.optimizer import make_optimizer
from gpt1_ds.parallel.veto import install


class BalancedPipeline(PipelineModule):
    """Stages cut by FLOPs. (Named so on purpose: DeepSpeed treats modules called GPT2ModelPipe differently.)"""

    def __init__(self, cuts: list[int], **arguments: Any) -> None:
        self.cuts = cuts
        with quiet(), torch.no_grad():  # it prints its topology, and broadcasts tied weights in autograd's sight
            super().__init__(**arguments)

    def _partition_layers(self, method: str = "flops") -> None:
        self.parts = self.cuts
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


class PipelineEngine(Engine):
    def __init__(self, config: Config, vocab_size: int, grid: Grid, head: HeadSpec | None = None) -> None:
        self.grid = grid
        self.micro_losses = []
        tensor = TensorParallel(grid.tensor_group, config.parallel.sequence)
        self.loss, self.head = self.announced(make_loss(head, vocab_size, tensor)), head
        layout = grid.layout
        self.architecture = whole = architecture(config.model, vocab_size, head)
        cuts = pipeline_cuts(whole, layout.pipeline)
        before = whole.layers[: cuts[grid.pipeline_rank]]
        self.copied = frozenset(parameter.name for layer in before for parameter in layer.parameters)
        model = BalancedPipeline(
            cuts,
            layers=[_specification(spec) for spec in module_specs(whole, config, tensor, head)],
            topology=PipeModelDataParallelTopology(layout.pipeline, layout.tensor, layout.data),
            loss_fn=partial(_loss, self.loss, self.micro_losses),
        )
        self._check_groups(model)
        if config.train.compile == "on":
            compile_blocks(model)
        optimizer = make_optimizer(model, config.optimizer)
        with quiet():
            self.deepspeed, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=ds_config(config, layout.data)
            )
        self._shape: torch.Size | None = None
        self._counts: dict[str, int] = {}  # instructions of each kind in this step
        self._mend()
        economise(self.deepspeed, layout.data)

    def step(self, batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        self.set_learning_rate(learning_rate)
        self._expect(batches[0].tokens_SB.shape)
        loss = float(self.deepspeed.train_batch(data_iter=_feed(batches)))
        norm = float(self.deepspeed.get_global_grad_norm())
        applied = self.deepspeed.was_step_applied() and norm != float("inf")
        return StepResult(loss, norm, applied, self.loss_scale())

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        self._expect(batches[0].tokens_SB.shape)
        loss = self.deepspeed.eval_batch(_feed(batches), num_micro_batches=len(batches))
        return float(loss)

    def ask_before_update(self, veto: Veto) -> None:
        engine = self.deepspeed  # its loss, which only the last stage has, is shared among all ranks once more
        install(engine.optimizer, lambda norm: veto(float(engine._aggregate_total_loss()), norm))

    def _expect(self, shape: torch.Size) -> None:
        """Before a schedule runs: DeepSpeed keeps its receive buffers, micro-batches of another shape need others."""
        if shape != self._shape:
            self.deepspeed.reset_activation_shape()
            self._shape = shape
        self._counts.clear()
        self.micro_losses.clear()
        self.scores.clear()

    def _check_groups(self, model: PipelineModule) -> None:
        """DeepSpeed makes its own groups; a different rank order would train something else without an error."""
        theirs = model.mpu()
        pairs = (
            (theirs.get_data_parallel_group(), self.grid.data_group),
            (theirs.get_slice_parallel_group(), self.grid.tensor_group),
            (theirs.get_model_parallel_group(), self.grid.model_group),
        )
        for their_group, our_group in pairs:
            same = dist.get_process_group_ranks(their_group) == dist.get_process_group_ranks(our_group)
            assert same, "DeepSpeed's rank order differs from the grid's"

    def _mend(self) -> None:
        """What in DeepSpeed's pipeline is wrong for this model, replaced on this engine alone."""
        engine = self.deepspeed
        instructions = {**engine._INSTRUCTION_MAP, schedule.ReduceTiedGrads: _reduce_tied_gradients}
        instructions[schedule.BackwardPass] = _backward_pass
        for kind, name in _HEARD.items():
            instructions[kind] = self._heard(name, instructions[kind])
        engine._INSTRUCTION_MAP = instructions
        if hasattr(engine.optimizer, "scaled_global_norm"):
            engine.optimizer.scaled_global_norm = MethodType(_scaled_global_norm, engine.optimizer)

    def _heard(self, name: str, instruction: Callable[..., None]) -> Callable[..., None]:
        def run(engine: Any, *arguments: Any, **keywords: Any) -> None:
            self._counts[name] = self._counts.get(name, -1) + 1
            self.progress(name.format(self._counts[name]))
            instruction(engine, *arguments, **keywords)

        return run


_HEARD = {
    schedule.LoadMicroBatch: "load of micro-batch {}",
    schedule.RecvActivation: "receiving activations of micro-batch {}",
    schedule.ForwardPass: "forward of micro-batch {}",
    schedule.SendActivation: "sending activations of micro-batch {}",
    schedule.RecvGrad: "receiving gradients of micro-batch {}",
    schedule.BackwardPass: "backward of micro-batch {}",
    schedule.SendGrad: "sending gradients of micro-batch {}",
    schedule.ReduceTiedGrads: "reduction of tied gradients",
    schedule.ReduceGrads: "reduction of gradients",
    schedule.OptimizerStep: "update",
}


def _backward_pass(engine: Any, buffer_id: int) -> None:
    """All outputs of a stage in one pass. DeepSpeed calls `backward` once for each of them, which walks through what
    they share as often: the right numbers for twice the work.
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


def _reduce_tied_gradients(engine: Any) -> None:
    """Sum the tied embedding's gradient over its two copies, wherever the optimizer keeps it.

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


def _scaled_global_norm(optimizer: Any, norm_type: int = 2) -> Tensor:
    """ZeRO 1's gradient norm with one reduction over the stages.

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


def _specification(spec: ModuleSpec) -> LayerSpec:
    if spec.layer.tied is None:
        return LayerSpec(spec.module, *spec.arguments)
    names = [parameter.name.removeprefix(f"{spec.layer.prefix}.") for parameter in spec.layer.parameters]
    return TiedLayerSpec(spec.layer.tied, spec.module, *spec.arguments, forward_fn=spec.apply, tied_weight_attr=names)


def _loss(loss: Loss, heard: list[Tensor], outputs: Any, labels: tuple[Tensor, ...]) -> Tensor:
    value = loss(outputs, labels)
    heard.append(value.detach())
    return value


def _feed(batches: Sequence[MicroBatch]) -> Any:
    return iter([(batch.inputs, batch.labels) for batch in batches])
