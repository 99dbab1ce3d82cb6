"""Whole optimizer steps of the real engine: whether the same step gives the same bits, and how fast steps are."""

from __future__ import annotations

import gc
import hashlib
import re
import struct
import time
from dataclasses import replace

import numpy as np
import torch

from gpt1_ds.config import Config
from gpt1_ds.data.loader import Rows
from gpt1_ds.diagnostics.report import Record
from gpt1_ds.engine import graphs, master_weights
from gpt1_ds.engine.base import Engine, MicroBatch
from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.objectives.causal import Causal
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS, Machine, find

WARM_UP, TIMED = graphs.WARM_UP + 2, 5  # steps; those that make and prove CUDA graphs are not timed
PART_OF_PLAN = 0.5  # fewer of the planned tokens per second are a problem
SHORTEST = 0.03  # seconds of a planned step that are judged: the plan counts no fixed cost of a step
_BITS = "train.deterministic=true promises it: report it with this file; resumed runs repeat within rounding only"
_GRAPHS = "training runs without CUDA graphs here, right and slower: report it with this file"
_SPEED = "another program on this device, low clocks (`nvidia-smi -q -d PERFORMANCE`) or too few cores for each rank?"


def repeats(config: Config, groups: ProcessGroups, device: torch.device) -> Record:
    """One step twice from the same state. It must give the same bits on CPUs and with train.deterministic=true; else
    the note says whether it did. The value is the number of ranks on which it did not.
    """
    must = config.train.deterministic or device.type == "cpu"
    first, second = (_step_bits(config, groups) for _ in range(2))
    different = sum(groups.gather(first != second))
    name = f"a step twice{', deterministic' * config.train.deterministic}: ranks whose bits differ"
    if must:
        return Record(name, not different, different, 0, _BITS * bool(different))
    return Record(name, True, different, None, "not promised without train.deterministic=true")


def graph(config: Config, groups: ProcessGroups) -> Record:
    """A micro-batch of one block as a CUDA graph, which the engine itself compares with the ordinary pass to the bit.
    The value is the number of ranks that train without graphs; only reported where the engine makes none.
    """
    engine, batches = _built(replace(config, model=replace(config.model, layers=1)), groups)
    for _ in range(graphs.WARM_UP + 1):
        engine.step(batches, config.optimizer.lr)
    name = "graph of a micro-batch: ranks without one that repeats its bits"
    passes = getattr(engine, "graphs", None)  # of the dense engine
    if passes is None:
        return Record(name, True, note="the engine makes none with this configuration")
    without = sum(groups.gather(passes.count == 0))
    return Record(name, not without, without, 0, f"{passes.problem}; {_GRAPHS}" if without else "")


def speed(config: Config, groups: ProcessGroups, device: torch.device) -> Record:
    """Tokens per second of all ranks together against the plan's figure; only reported where the plan knows no such
    device.
    """
    engine, batches = _built(config, groups)
    for step in range(WARM_UP + TIMED):
        if step == WARM_UP:
            _wait(device)
            began = time.perf_counter()
        engine.step(batches, config.optimizer.lr)
    _wait(device)
    seconds = max(groups.gather(time.perf_counter() - began)) / TIMED
    rate = config.train.global_batch * config.model.context / seconds
    machine = known_machine(torch.cuda.get_device_name(device) if device.type == "cuda" else None)
    name = "a step of the real engine, tokens/s"
    if machine is None:
        return Record(name, True, rate, None, "the plan knows no such device: gpt1-ds plan --calibrate measures it")
    planned = cost(config, groups.world, _vocabulary(config), machine).tokens_per_second
    return judged(name, rate, planned, config.train.global_batch * config.model.context / planned, machine)


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
    found = find(None, kind)
    if found.measured and found.device == kind and device_name in (None, found.name):
        return found
    words = re.findall(r"\w+", (device_name or "").lower())
    return next((machine for name, machine in PRESETS.items() if name in words), None)


def _step_bits(config: Config, groups: ProcessGroups) -> str:
    """What a first step gives on this rank, as one hash: its loss, gradient norm and new weights."""
    engine, batches = _built(config, groups)
    result = engine.step(batches, config.optimizer.lr)
    digest = hashlib.sha256(struct.pack("2d", result.loss, result.grad_norm))
    for fragment in master_weights.fragments(engine):
        digest.update(fragment.master.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _built(config: Config, groups: ProcessGroups) -> tuple[Engine, list[MicroBatch]]:
    """A new engine with initial weights, and this rank's micro-batches of random tokens."""
    gc.collect()  # the engine before it, which refers to itself
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
