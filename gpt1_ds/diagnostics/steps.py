"""Whole optimizer steps of the real engine: whether the same step gives the same bits, and how fast steps are."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist

from gpt1_ds.config import Config
from gpt1_ds.data.loader import Rows
from gpt1_ds.diagnostics.report import Record
from gpt1_ds.engine import graphs, master_weights
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.model import proof
from gpt1_ds.objectives.causal import Causal
from gpt1_ds.plan import memory
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS, Machine, find_machine

WARM_UP, TIMED = graphs.WARM_UP + 2, 5  # steps; those that make and prove CUDA graphs are not timed
PART_OF_PLAN = 0.5  # fewer of the planned tokens per second are a problem
SHORTEST = 0.03  # seconds of a planned step that are judged: the plan counts no fixed cost of a step
REDUCTIONS = 3  # passes whose gradient norms are compared with and without overlap
NORMS = 1e-5  # relative difference that another order of the sums may make
_BITS = "train.deterministic=true promises it: report it with this file; resumed runs repeat within rounding only"
_GRAPHS = "training runs without CUDA graphs here, right and slower: report it with this file"
_SPEED = "another program on this device, low clocks (`nvidia-smi -q -d PERFORMANCE`) or too few cores for each rank?"
_OVERLAP = "do not train on several GPUs with train.cuda_graphs=on: report it with this file"


class Steps:
    """The checks of one engine, which is built once, in any order but that in which it warms up: `repeats` goes first,
    `speed` and `peak` last.
    """

    def __init__(self, config: Config, groups: ProcessGroups, device: torch.device) -> None:
        self.config, self.groups, self.device = config, groups, device
        self.made = 0  # steps so far

    @cached_property
    def _built(self) -> tuple[Engine, list[MicroBatch]]:
        """With initial weights, and this rank's micro-batches of random tokens."""
        return _build(self.config, self.groups)

    def _step(self, times: int = 1) -> tuple[float, float]:
        """The loss and the gradient norm of the last one."""
        engine, batches = self._built
        for _ in range(times):
            result = engine.step(batches, self.config.optimizer.lr)
        self.made += times
        return result.loss, result.grad_norm

    def repeats(self) -> Record:
        """One step twice from the same state. It must give the same bits on CPUs and with train.deterministic=true;
        else the note says whether it did. The value is the number of ranks on which it did not.
        """
        deterministic = self.config.train.deterministic
        engine, _ = self._built
        masters = [fragment.master.to("cpu", copy=True) for fragment in master_weights.fragments(engine)]
        scaler = master_weights.loss_scaler(engine)
        first = self._bits()
        for fragment, master in zip(master_weights.fragments(engine), masters, strict=True):
            fragment.master.copy_(master)
        master_weights.forget_moments(engine)
        master_weights.set_loss_scaler(engine, scaler)
        master_weights.publish(engine)
        different = sum(self.groups.gather(first != self._bits()))
        name = f"a step twice{', deterministic' * deterministic}: ranks whose bits differ"
        if deterministic or self.device.type == "cpu":
            return Record(name, not different, different, 0, _BITS * bool(different))
        return Record(name, True, different, None, "not promised without train.deterministic=true")

    def _bits(self) -> str:
        """What a step gives on this rank, as one hash: its loss, gradient norm and new weights."""
        digest = hashlib.sha256(struct.pack("2d", *self._step()))
        for fragment in master_weights.fragments(self._built[0]):
            digest.update(fragment.master.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def graph(self) -> Record:
        """A micro-batch as a CUDA graph, which the engine itself compares with the ordinary pass to the bit. The value
        is the number of ranks that train without graphs; only reported where the engine makes none.
        """
        self._step(max(1, graphs.WARM_UP + 1 - self.made))
        name = "graph of a micro-batch: ranks without one that repeats its bits"
        passes = self._built[0].graphs
        if passes is None:
            return Record(name, True, note="the engine makes none with this configuration")
        without = sum(self.groups.gather(passes.count == 0))
        return Record(name, not without, without, 0, f"{passes.problem}; {_GRAPHS}" if without else "")

    def speed(self) -> Record:
        """Tokens per second of all ranks together against the plan's figure; only reported where the plan knows no such
        device.
        """
        self._step(max(1, WARM_UP - self.made))
        _wait(self.device)
        began = time.perf_counter()
        self._step(TIMED)
        _wait(self.device)
        seconds, config = max(self.groups.gather(time.perf_counter() - began)) / TIMED, self.config
        rate = config.train.global_batch * config.model.context / seconds
        machine = known_machine(torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None)
        name = "a step of the real engine, tokens/s"
        if machine is None:
            return Record(name, True, rate, None, "the plan knows no such device: gpt1-ds plan --calibrate measures it")
        planned = cost(config, self.groups.world, _vocabulary(config), machine).tokens_per_second
        return judged(name, rate, planned, config.train.global_batch * config.model.context / planned, machine)

    def peak(self) -> Record:
        """The memory of the steps so far on the rank that held most, beside the plan's; of a GPU."""
        found = max(self.groups.gather(torch.cuda.max_memory_allocated(self.device))) / 2**30
        planned = memory.peak(self.config, self.groups.world, _vocabulary(self.config), "cuda")
        limit = planned.peak / 2**30
        note = f"{found / limit:.1%} of the plan's {limit:.2f}, at the {planned.peak_at}"
        return Record("peak memory of a step, GiB", True, found, None, note)


def overlap(config: Config, groups: ProcessGroups) -> Record:
    """Gradients of one block that are reduced under the backward pass, against those that are reduced after it: the
    largest relative difference of their norms.
    """
    small = replace(config, model=replace(config.model, layers=1), train=replace(config.train, cuda_graphs="off"))
    found = []
    for answer in (False, True):
        proof.decide(answer)  # while the engine is built: the kernels are the same
        engine, batches = _build(small, groups)
        proof.decide(True)
        found.append([engine.step(batches, 0.0).grad_norm for _ in range(REDUCTIONS)])
    after, under = found
    worst = max(groups.gather(max(abs(one / other - 1) for one, other in zip(under, after, strict=True))))
    ok = worst <= NORMS
    name = "gradients reduced under the backward pass: relative difference of their norm"
    return Record(name, ok, worst, NORMS, _OVERLAP * (not ok))


def judged(name: str, rate: float, planned: float, seconds: float, machine: Machine) -> Record:
    """A rate against the plan's; only reported where the planned step of `seconds` is too short to compare."""
    note = f"{rate / planned:.0%} of the plan's {planned:.0f} ({machine.name}, {machine.source})"
    if seconds < SHORTEST:
        return Record(name, True, rate, None, f"{note}; steps of {1000 * seconds:.0f} ms are too short to be judged")
    ok = rate >= PART_OF_PLAN * planned
    return Record(name, ok, rate, PART_OF_PLAN * planned, note + f"; {_SPEED}" * (not ok))


def known_machine(device_name: str | None) -> Machine | None:
    """What the plan knows of this GPU (None: this CPU): measured here, else assumed by its name; None for neither."""
    kind = "cpu" if device_name is None else "cuda"
    found = find_machine(None, kind)
    if found.measured and found.device == kind and device_name in (None, found.name):
        return found
    words = re.findall(r"\w+", (device_name or "").lower())
    return next((machine for name, machine in PRESETS.items() if name in words), None)


def _build(config: Config, groups: ProcessGroups) -> tuple[Engine, list[MicroBatch]]:
    if dist.get_backend() == "nccl":
        torch.cuda.reset_peak_memory_stats()
    engine = build_engine(config, groups)
    length = config.model.context + 1
    rows = []
    for numbers in batch_shape(config, groups).rows():
        tokens = [np.random.default_rng(row).integers(0, _vocabulary(config), length) for row in numbers]
        rows.append(Rows(np.stack(tokens).astype(np.int64), numbers))
    return engine, training_batches(Causal(), rows, config.run.seed, 1)


def _vocabulary(config: Config) -> int:
    assert config.model.vocab_size is not None, "the configuration of a self-proof has no tokenizer"
    return config.model.vocab_size


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
