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

from gpt1_ds.config import Config
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import Loss, make_loss
from gpt1_ds.model.stages import TIED, Stage, compile_blocks, stage_list
from gpt1_ds.model.task_head import HeadSpec
from gpt1_ds.parallel.ds_config import ds_config
from gpt1_ds.parallel.economy import economise
from gpt1_ds.parallel.engine import Engine, MicroBatch, StepResult, Veto
from gpt1_ds.parallel.grid import Grid
from gpt1_ds.parallel.libraries import quiet
from gpt1_ds.parallel.optimizer import make_optimizer
from gpt1_ds.parallel.veto import install
from gpt1_ds.plan.count import stage_flops
from gpt1_ds.plan.layout import balance


class BalancedPipeline(PipelineModule):
    """Stages cut by FLOPs. (Named so on purpose: DeepSpeed treats modules called GPT2ModelPipe differently.)"""

    def __init__(self, costs: Sequence[float], **arguments: Any) -> None:
        self.costs = costs
        with quiet(), torch.no_grad():  # it prints its topology, and broadcasts tied weights in autograd's sight
            super().__init__(**arguments)

    def _partition_layers(self, method: str = "flops") -> None:
        self.parts = balance(self.costs, self.num_stages)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


class PipelineEngine(Engine):
    def __init__(self, config: Config, vocab_size: int, grid: Grid, head: HeadSpec | None = None) -> None:
        self.grid = grid
        self.micro_losses = []
        tensor = TensorParallel(grid.tensor_group, config.parallel.sequence)
        self.loss, self.head = self.announced(make_loss(head, vocab_size, tensor)), head
        layout = grid.layout
        outputs, language = (head.outputs, head.lm_coefficient > 0) if head else (0, True)
        model = BalancedPipeline(
            stage_flops(config.model, vocab_size, outputs=outputs, language=language),
            layers=[_specification(stage) for stage in stage_list(config, vocab_size, tensor, head)],
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


def _specification(stage: Stage) -> LayerSpec:
    if stage.tied:
        return TiedLayerSpec(TIED, stage.module, *stage.arguments, forward_fn=stage.apply)
    return LayerSpec(stage.module, *stage.arguments)


def _loss(loss: Loss, heard: list[Tensor], outputs: Any, labels: tuple[Tensor, ...]) -> Tensor:
    value = loss(outputs, labels)
    heard.append(value.detach())
    return value


def _feed(batches: Sequence[MicroBatch]) -> Any:
    return iter([(batch.inputs, batch.labels) for batch in batches])
