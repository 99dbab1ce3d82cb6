"""The dense engine: every rank holds all layers (its shard of each, under tensor parallelism), ZeRO 0 to 3."""

from __future__ import annotations

from collections.abc import Sequence

import deepspeed
import torch
import torch.distributed as dist

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine, MicroBatch, StepResult
from gpt1_ds.engine.deepspeed.install import install
from gpt1_ds.engine.deepspeed.micro_batch_graphs import graphed_passes
from gpt1_ds.engine.deepspeed.settings import ds_config, set_micro_batches
from gpt1_ds.engine.gradient_norm import clip_gradients
from gpt1_ds.engine.graphs import Tensors
from gpt1_ds.engine.optimizer import make_optimizer
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher.libraries import quiet
from gpt1_ds.model.build import DenseModel, compile_blocks, compiles
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.states import States
from gpt1_ds.objectives.base import Objective


class DenseEngine(Engine):
    def __init__(self, config: Config, vocab_size: int, groups: ProcessGroups, objective: Objective) -> None:
        self.groups, self.clip, self.zero = groups, config.optimizer.clip, config.parallel.zero
        self.architecture = architecture(config.model, vocab_size, objective.head)
        tensor = TensorParallel(groups.tensor_group, config.parallel.sequence)
        model = DenseModel(config, vocab_size, tensor, objective.head)
        self.loss, self.objective = model.loss, objective
        model.loss = self._micro_loss  # type: ignore[assignment]  # it also says to the watchdog that the loss begins
        if compiles(config):
            compile_blocks(model)
        frozen = None if config.task is None else config.task.frozen_layers
        optimizer = make_optimizer(model, config.optimizer, config.model.layers, frozen)
        with quiet():
            self.deepspeed, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=ds_config(config, groups.layout.data), mpu=groups
            )
        self._reduction = install(
            self.deepspeed, config.train.deepspeed_patches, groups, self.outcome, lambda phase: self.progress(phase)
        )
        self.graphs = graphed_passes(self, self._pass, self._reduction, config)

    def step(self, batches: Sequence[MicroBatch], learning_rate: float) -> StepResult:
        self.set_learning_rate(learning_rate)
        if len(batches) != self.micro_batches:
            set_micro_batches(self.deepspeed, len(batches))
            if self.graphs is not None:
                self.graphs.release()  # in which a mean over as many micro-batches as before was captured
        self.deepspeed.train()
        self.micro_losses = []
        self.loss.forget()
        for number, batch in enumerate(self._here(batches)):
            last = number == len(batches) - 1
            graphed = self.graphs is not None and self.graphs.problem is None
            loss, *scores = (self._graphed if graphed else self._pass)(batch.tensors, number, last)
            self.micro_losses.append(loss)
            self.loss.scores.extend(scores)
            self.progress("update")
            if self.zero == 0 and last:
                norm = clip_gradients(self.module, self.groups, self.clip, self.optimizer, self.outcome.judge_if_any)
            self.deepspeed.step()
        if self.zero:
            norm = self.deepspeed.get_global_grad_norm()
        return self._result(norm)

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        self.deepspeed.eval()
        self.loss.forget()
        losses = []
        with torch.no_grad():
            for number, batch in enumerate(self._here(batches)):
                self.progress(f"evaluation of micro-batch {number}")
                losses.append(self.deepspeed(*batch.tensors))
        return float(self._sum(losses)) / self.groups.layout.data

    def _pass(self, tensors: Tensors, number: int, last: bool) -> Tensors:
        """Returns forward and backward of a micro-batch: its loss, and a task's scores."""
        self.progress(f"forward of micro-batch {number}")
        known = len(self.loss.scores)
        try:
            loss = self.deepspeed(*tensors)
            self.progress(f"backward of micro-batch {number}")
            if self._reduction is not None and last:
                self._reduction.begin()
            self.deepspeed.backward(loss)
            return loss.detach(), *self.loss.scores[known:]
        finally:
            del self.loss.scores[known:]

    def _micro_loss(self, states: States, labels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.progress("loss")
        return self.loss(states, labels)

    def _graphed(self, tensors: Tensors, number: int, last: bool) -> Tensors:
        assert self.graphs is not None, "it is called where there are graphs"
        if last and self._reduction is not None:
            self.progress("reduction of gradients")  # within the graph: an event cannot be recorded in its midst
        self.progress(f"forward and backward of micro-batch {number}")
        return self.graphs.run(tensors, number, last)

    def _total_loss(self) -> tuple[torch.Tensor, int]:
        return self._sum(self.micro_losses), self.groups.layout.data

    def _sum(self, losses: list[torch.Tensor]) -> torch.Tensor:
        """Returns the sum over the data-parallel ranks of the mean of their micro-batches."""
        mean = torch.stack(losses).float().sum() / len(losses)
        if self.groups.layout.data > 1:
            dist.all_reduce(mean, group=self.groups.data_group)
        return mean
