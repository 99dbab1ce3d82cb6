"""The pipelined engine: each rank holds a run of layers; DeepSpeed's 1F1B schedule moves micro-batches through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor
from torch.nn import Parameter

from gpt1_ds.architecture.architecture import Architecture, architecture, pretrained_architecture
from gpt1_ds.architecture.count import pipeline_cuts
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine, MicroBatch, StepResult
from gpt1_ds.engine.deepspeed.install import install
from gpt1_ds.engine.deepspeed.pipeline import BACKWARD
from gpt1_ds.engine.deepspeed.settings import ds_config, set_micro_batches
from gpt1_ds.engine.optimizer import make_optimizer
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher.libraries import quiet
from gpt1_ds.model import names
from gpt1_ds.model.build import ModuleSpec, compile_blocks, compiles, module_specs
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import make_loss
from gpt1_ds.model.states import States
from gpt1_ds.objectives.base import Objective


class BalancedPipeline(PipelineModule):
    """Stages cut by FLOPs. (Named so on purpose: DeepSpeed treats modules called GPT2ModelPipe differently.)"""

    def __init__(self, whole: Architecture, cuts: list[int], relative: bool, **arguments: Any) -> None:
        self.cuts, self.relative = cuts, relative
        with quiet(), torch.no_grad():  # it prints its topology, and broadcasts tied weights in autograd's sight
            super().__init__(**arguments)
        names.share(self)
        self.copies = list(self._copies(whole))

    def get_tied_weights_and_groups(self) -> list[tuple[Parameter, Any]]:
        """Returns the weights of tied modules, and of blocks of two stacks that share theirs, with their ranks."""
        return [*super().get_tied_weights_and_groups(), *self.copies]

    def _copies(self, whole: Architecture) -> Iterator[tuple[Parameter, Any]]:
        """Yields what this stage and others hold of the same weights, and the ranks whose gradients are summed. Only
        the first stage's count in the norm.
        """
        holders: dict[str, list[int]] = {}
        for stage, (start, stop) in enumerate(pairwise(self.cuts)):
            for name in {p.name: p for layer in whole.layers[start:stop] if not layer.tied for p in layer.parameters}:
                holders.setdefault(name, []).append(stage)
        here = {names.info(parameter).name: parameter for parameter in self.parameters()}
        several = {name: tuple(found) for name, found in holders.items() if len(found) > 1}
        groups = {found: self._group_over(found) for found in dict.fromkeys(several.values())}
        for name, found in several.items():
            if self.stage_id in found:
                here[name].ds_pipe_replicated = self.stage_id != found[0]
                yield here[name], groups[found]

    def _group_over(self, stages: Sequence[int]) -> Any:
        """Returns this rank's, if it is in one: all ranks make all groups."""
        sizes, mine = [range(self._topo.get_dim(axis)) for axis in ("data", "model")], None
        for data, model in product(*sizes):
            ranks = [self._topo.get_rank(pipe=stage, data=data, model=model) for stage in stages]
            group = dist.new_group(ranks)
            mine = group if self.global_rank in ranks else mine
        return mine

    def forward(self, inputs: tuple[Tensor, ...]) -> States | tuple[Tensor, ...]:
        """Returns what the stage sends, or the loss reads, of what DeepSpeed received or the first stage was given."""
        states: States = super().forward(States.unpacked(inputs, self.relative and self.stage_id > 0))
        return states if self.stage_id == self.num_stages - 1 else states.packed()

    def _partition_layers(self, method: str = "flops") -> None:
        self.parts = self.cuts
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


class PipelineEngine(Engine):
    def __init__(self, config: Config, vocab_size: int, groups: ProcessGroups, objective: Objective) -> None:
        self.groups = groups
        self.micro_losses = []
        tensor = TensorParallel(groups.tensor_group, config.parallel.sequence)
        self.loss, self.objective = make_loss(config, objective.head, vocab_size, tensor), objective
        layout = groups.layout
        if config.task is None:
            whole = pretrained_architecture(config.model, vocab_size, objective.head, config.row)
        else:
            whole = architecture(config.model, vocab_size, objective.head)
        self.architecture = whole
        cuts = pipeline_cuts(whole, layout.pipeline)
        before = whole.layers[: cuts[groups.pipeline_rank]]
        self.copied = frozenset(parameter.name for layer in before for parameter in layer.parameters)
        model = BalancedPipeline(
            whole,
            cuts,
            config.model.positions == "relative",
            layers=[_specification(spec) for spec in module_specs(whole, config, tensor, objective.head)],
            topology=PipeModelDataParallelTopology(layout.pipeline, layout.tensor, layout.data),
            loss_fn=self._micro_loss,
        )
        self._check_groups(model)
        if compiles(config):
            compile_blocks(model)
        frozen = None if config.task is None else config.task.frozen_layers
        optimizer = make_optimizer(model, config.optimizer, config.model.layers, frozen)
        with quiet():
            self.deepspeed, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=ds_config(config, layout.data)
            )
        self._shapes: tuple[torch.Size, ...] = ()
        self._counts: dict[str, int] = {}  # instructions of each kind in this step
        self.tied_weights = model.get_tied_weights_and_groups()
        tied = [weight for weight, _ in self.tied_weights]
        patches = config.train.deepspeed_patches
        self._reduction = install(self.deepspeed, patches, groups, self.outcome, self._trace, tied)

    def step(self, batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        self.set_learning_rate(learning_rate)
        if len(batches) != self.micro_batches:
            set_micro_batches(self.deepspeed, len(batches))
        self._expect(batches[0].shapes)
        loss = self.deepspeed.train_batch(data_iter=_feed(self._here(batches)))
        return self._result(self.deepspeed.get_global_grad_norm(), loss)

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        self._expect(batches[0].shapes)
        loss = self.deepspeed.eval_batch(_feed(self._here(batches)), num_micro_batches=len(batches))
        return float(loss)

    def _micro_loss(self, states: States, labels: tuple[Tensor, ...]) -> Tensor:
        self.progress("loss")
        value = self.loss(states, labels)
        self.micro_losses.append(value.detach())
        return value

    def _total_loss(self) -> tuple[Tensor, int]:
        return self.deepspeed._aggregate_total_loss(), 1  # only the last stage has it: all ranks take it from there

    def _expect(self, shapes: tuple[torch.Size, ...]) -> None:
        """Before a schedule runs: DeepSpeed keeps its receive buffers, micro-batches of another shape need others."""
        if shapes != self._shapes:
            self.deepspeed.reset_activation_shape()
            self._shapes = shapes
        self._counts.clear()
        self.micro_losses.clear()
        self.loss.forget()

    def _trace(self, phase: str) -> None:
        """`phase` is that of an instruction; {} stands for how many of its kind came before it in this step."""
        count = self._counts[phase] = self._counts.get(phase, -1) + 1
        if self._reduction is not None and phase == BACKWARD and count == self.deepspeed.micro_batches - 1:
            self._reduction.begin()
        self.progress(phase.format(count))

    def _check_groups(self, model: PipelineModule) -> None:
        """DeepSpeed makes its own groups; a different rank order would train something else without an error."""
        theirs = model.mpu()
        pairs = (
            (theirs.get_data_parallel_group(), self.groups.data_group),
            (theirs.get_slice_parallel_group(), self.groups.tensor_group),
            (theirs.get_model_parallel_group(), self.groups.model_group),
        )
        for their_group, our_group in pairs:
            same = dist.get_process_group_ranks(their_group) == dist.get_process_group_ranks(our_group)
            assert same, "DeepSpeed's rank order differs from ours"


def _specification(spec: ModuleSpec) -> LayerSpec:
    if spec.layer.tied is None:
        return LayerSpec(spec.module, *spec.arguments)
    names = [parameter.name.removeprefix(f"{spec.layer.prefix}.") for parameter in spec.layer.parameters]
    return TiedLayerSpec(spec.layer.tied, spec.module, *spec.arguments, forward_fn=spec.apply, tied_weight_attr=names)


def _feed(batches: Sequence[MicroBatch]) -> Any:
    return iter([(batch.inputs, batch.labels) for batch in batches])
