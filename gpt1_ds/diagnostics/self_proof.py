"""The self-proof: a machine that no developer had shows in two minutes which promises hold on it.

It runs on all ranks together, as training does: `doctor --gpu` starts one for each GPU of this host, `slurm check` one
for each GPU of a job. This package lies above training/ because it proves the real engine against the plan, and below
slurm/ and commands/, which start it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from gpt1_ds.config import Config, load
from gpt1_ds.diagnostics import collectives, numerics, report, steps, toolchain
from gpt1_ds.diagnostics.report import OF_A_JOB, Record, Report
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.launcher import accelerator
from gpt1_ds.model.build import compiles

MODEL = "pretrain/gpt1_117m"
Check = Callable[[], Record]


def configuration(world: int, overrides: Sequence[str] = ()) -> Config:
    """GPT-1 on `world` ranks, without a cut of the model, with a global batch that splits evenly."""
    rows = max(1, load([MODEL]).train.global_batch // world) * world
    return accelerator.fitted(load([MODEL], [f"train.global_batch={rows}", *overrides]), world)


def prove(config: Config, gpus_per_node: int = 0) -> Report:
    """Every check on this rank; the report is the same on all ranks. `gpus_per_node` is what SLURM was asked for."""
    accelerator.prepare(config)
    with distributed_session(config) as groups:
        device, config = _device(), groups.share(config)  # hosts of unlike memory fit unlike micro-batches
        tools = groups.gather(toolchain.toolchain(device))
        hosts = groups.gather(os.environ.get("SLURMD_NODENAME", socket.gethostname()))
        found = toolchain.by_host(hosts, [one["count"] for one in tools])
        records = [toolchain.same(tools)]
        if device.type == "cuda":
            records.append(toolchain.devices(found, gpus_per_node))
        alone = [_guarded(*named) for named in local_checks(config, groups, device)]
        records += _worst(groups, hosts, alone)
        records += collectives.checks(device, groups.gather, collectives.link_rate(device, len(found)))
        if device.type == "cuda":
            records.append(steps.graph(config, groups))
        records += [steps.repeats(config, groups, device), steps.speed(config, groups, device)]
        date = groups.share(f"{datetime.now(UTC):%Y-%m-%d}")
        return Report(hosts[0], date, groups.world, found, tools[0], records)


def prove_job(folder: Path, gpus_per_node: int, overrides: Sequence[str]) -> int:
    """`prove` on a rank of a job; rank 0 writes the report into `folder`. The exit code is 0: who reads it judges."""
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    found = prove(configuration(world, overrides), gpus_per_node)
    if rank == 0:
        report.write(found, folder / OF_A_JOB)
    return 0


def prove_determinism(config: Config) -> list[Record]:
    """That a step repeats to the bit with train.deterministic=true. CUDA reads what decides it when it is loaded, so
    these are ranks of their own.
    """
    config = replace(config, train=replace(config.train, deterministic=True))
    accelerator.prepare(config)
    with distributed_session(config) as groups:
        return [steps.repeats(config, groups, _device())]


def local_checks(config: Config, groups: ProcessGroups, device: torch.device) -> list[tuple[str, Check]]:
    """Those that a rank does by itself, named as their records begin."""
    cuda = device.type == "cuda"
    kinds: tuple[numerics.Kind, ...] = ("exact", "fused") if cuda else ("exact",)
    forms = (False, True) if compiles(config) else (False,)
    alone = dist.new_group([groups.rank], backend="gloo", use_local_synchronization=True)
    assert isinstance(alone, dist.ProcessGroup), "this rank is its member"
    found: list[tuple[str, Check]] = [
        ("dropout masks of hidden states", partial(numerics.hidden_masks, device)),
        ("dropout masks of exact attention", partial(numerics.attention_masks, device)),
    ]
    for precision in numerics.TYPES:
        for kind in kinds:
            for compiled in forms:
                check = partial(numerics.block, device, config.model, alone, precision, kind, compiled)
                found.append((f"block, {kind} attention, {precision}{', compiled' * compiled}", check))
        assert config.model.vocab_size is not None, "the configuration of a self-proof has no tokenizer"
        check = partial(numerics.loss, device, config.model.width, config.model.vocab_size, alone, precision)
        found.append((f"loss of the language model, {precision}", check))
    return found


def _guarded(name: str, check: Check) -> Record:
    """What a kernel raises is a promise that does not hold."""
    try:
        return check()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return Record(name, False, note=f"{type(error).__name__}: {first}"[:300])


def _worst(groups: ProcessGroups, hosts: Sequence[str], records: Sequence[Record]) -> list[Record]:
    """Of every check the record of the rank that did worst, which a record that fails names."""
    found = []
    for of_check in zip(*groups.gather(list(records)), strict=True):
        rank = max(range(groups.world), key=lambda one: (not of_check[one].ok, of_check[one].value or 0.0))
        worst = of_check[rank]
        if not worst.ok:
            worst = replace(worst, note=f"rank {rank} on {hosts[rank]}: {worst.note}")
        found.append(worst)
    return found


def _device() -> torch.device:
    """Of this rank, which is connected."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
