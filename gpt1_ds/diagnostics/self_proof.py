"""The self-proof: a machine that no developer had shows in two minutes which promises hold on it.

It runs on all ranks together, as training does: `doctor --gpu` starts one for each GPU of this host, `slurm check` one
for each GPU of a job. This package lies above training/ because it proves the real engine against the plan, and below
slurm/ and commands/, which start it.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist

from gpt1_ds.common.files import this_node
from gpt1_ds.config import Config, load
from gpt1_ds.diagnostics import collectives, numerics, steps, toolchain
from gpt1_ds.diagnostics.report import OF_A_JOB, Ledger, Record, Report
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.launcher import accelerator
from gpt1_ds.model import proof
from gpt1_ds.model.build import compiles

MODEL = "pretrain/gpt1_117m"
TWICE = "a step twice"
DETERMINISTIC = f"{TWICE}, deterministic"
LocalCheck = Callable[[], Record]


@dataclass(frozen=True)
class Check:
    """What all ranks do together. It does not begin where a ledger has less than `seconds` left, which a GPU may need
    for it while nothing is compiled.
    """

    name: str
    seconds: float
    run: Callable[[], list[Record]]


def configuration(world: int, overrides: Sequence[str] = ()) -> Config:
    """GPT-1 on `world` ranks, without a cut of the model, with a global batch that splits evenly. CUDA graphs are on:
    it is they that are proven.
    """
    rows = max(1, load([MODEL]).train.global_batch // world) * world
    arguments = [f"train.global_batch={rows}", "train.cuda_graphs=on", *overrides]
    return accelerator.with_fitted_micro_batch(load([MODEL], arguments), world)


def prove(config: Config, gpus_per_node: int = 0, ledger: Ledger | None = None) -> Report:
    """Every check for which the ledger has time, on this rank; the report is the same on all ranks, and rank 0 keeps
    the ledger. `gpus_per_node` is what SLURM was asked for.
    """
    accelerator.prepare(config)
    proof.decide(True)  # the kernels are what is checked
    with distributed_session(config) as groups:
        device, config = _device(), groups.share(config)  # hosts of unlike memory fit unlike micro-batches
        tools = groups.gather(toolchain.toolchain(device))
        hosts = groups.gather(this_node())
        found = toolchain.by_host(hosts, [one["count"] for one in tools])
        records = [toolchain.same(tools)]
        if device.type == "cuda":
            records.append(toolchain.devices(found, gpus_per_node))
        report = Report(hosts[0], groups.share(today()), groups.world, found, tools[0], records)
        return _all(report, checks(config, groups, device, hosts), groups, ledger if groups.rank == 0 else None)


def _all(report: Report, checks: Sequence[Check], groups: ProcessGroups, ledger: Ledger | None) -> Report:
    skipped: list[str] = []
    for number, check in enumerate(checks):
        if ledger is not None:
            ledger.write(report, [*(one.name for one in checks[number:]), *skipped])
        if groups.share(ledger is None or time.time() + check.seconds <= ledger.until):
            report = report.with_records(check.run())
        else:
            skipped.append(check.name)
    if ledger is not None:
        ledger.write(report, skipped)
    return replace(report, not_reached=skipped)


def checks(config: Config, groups: ProcessGroups, device: torch.device, hosts: Sequence[str]) -> list[Check]:
    """What decides most goes first."""
    cuda, step = device.type == "cuda", steps.Steps(config, groups, device)
    local = [
        Check(name, 15 if "compiled" in name else 8, partial(_worst, groups, hosts, name, check))
        for name, check in local_checks(config, groups, device, thorough=False)
    ]
    link = collectives.link_rate(device, len(set(hosts)))
    several: list[tuple[str, float, Callable[[], list[Record]]]] = [
        (TWICE, 20, lambda: [step.repeats()]),
        *([("graph of a micro-batch", 5, lambda: [step.graph()])] if cuda else []),
        ("sums over the ranks", 5, lambda: collectives.checks(device, groups.gather, link)),
        ("a step of the real engine", 5, lambda: [step.speed()]),
        *([("peak memory of a step", 1, lambda: [step.peak()])] if cuda else []),
    ]
    if cuda and groups.layout.data > 1:
        several.append(("gradients reduced under the backward pass", 15, lambda: [steps.overlap(config, groups)]))
    if groups.world > 1:  # what one rank raises must end them all: the others wait for it
        return [*local, *(Check(*one) for one in several)]
    return [*local, *(Check(name, seconds, partial(_guarded, name, run)) for name, seconds, run in several)]


def prove_job(folder: Path, gpus_per_node: int, overrides: Sequence[str]) -> int:
    """`prove` on a rank of a job; rank 0 writes the report into `folder`. The exit code is 0: who reads it judges."""
    world = int(os.environ["WORLD_SIZE"])
    prove(configuration(world, overrides), gpus_per_node, Ledger(folder / OF_A_JOB, shown=None))
    return 0


def prove_determinism(config: Config) -> list[Record]:
    """That a step repeats to the bit with train.deterministic=true. CUDA reads what decides it when it is loaded, so
    these are ranks of their own.
    """
    config = replace(config, train=replace(config.train, deterministic=True))
    accelerator.prepare(config)
    proof.decide(True)
    with distributed_session(config) as groups:
        return [steps.Steps(config, groups, _device()).repeats()]


def today() -> str:
    """UTC, as in 2026-11-22."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def local_checks(
    config: Config, groups: ProcessGroups, device: torch.device, thorough: bool = True
) -> list[tuple[str, LocalCheck]]:
    """Returns the checks that a rank does by itself, named as their records begin. Unless they are `thorough`, they
    leave out what training does not do by default: fused attention in fp32 or compiled, and compiled blocks in fp32.
    """
    cuda = device.type == "cuda"
    kinds: tuple[numerics.Kind, ...] = ("exact", "fused") if cuda else ("exact",)
    forms = (False, True) if compiles(config) else (False,)
    alone = dist.new_group([groups.rank], backend="gloo", use_local_synchronization=True)
    assert isinstance(alone, dist.ProcessGroup), "this rank is its member"
    found: list[tuple[str, LocalCheck]] = [
        ("dropout masks of hidden states", partial(numerics.hidden_masks, device)),
        ("dropout masks of exact attention", partial(numerics.attention_masks, device)),
    ]
    for precision in numerics.TYPES:
        for kind in kinds:
            for compiled in forms:
                if not thorough and (precision == "fp32") + (kind == "fused") + compiled > 1:
                    continue
                check = partial(numerics.block, device, config.model, alone, precision, kind, compiled)
                found.append((f"block, {kind} attention, {precision}{', compiled' * compiled}", check))
        assert config.model.vocab_size is not None, "the configuration of a self-proof has no tokenizer"
        check = partial(numerics.loss, device, config.model.width, config.model.vocab_size, alone, precision)
        found.append((f"loss of the language model, {precision}", check))
    model = config.model
    for seen in get_args(numerics.Seen):  # what other families and data.documents=masked ask of the same kernels
        for precision in numerics.TYPES:
            check = partial(numerics.attention_of, device, model.heads, model.head_dim, model.context, seen, precision)
            found.append((f"exact attention of {seen}, {precision}", check))
    return found


def _guarded(name: str, run: Callable[[], list[Record]]) -> list[Record]:
    """What a kernel raises is a promise that does not hold; where it was raised stands on stderr."""
    try:
        return run()
    except Exception as error:
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        return [Record(name, False, note=f"{type(error).__name__}: {first}"[:300])]


def _worst(groups: ProcessGroups, hosts: Sequence[str], name: str, check: LocalCheck) -> list[Record]:
    """The record of the rank that did worst, which a record that fails names."""
    (mine,) = _guarded(name, lambda: [check()])
    found = groups.gather(mine)
    rank = max(range(groups.world), key=lambda one: (not found[one].ok, found[one].value or 0.0))
    worst = found[rank]
    return [worst if worst.ok else replace(worst, note=f"rank {rank} on {hosts[rank]}: {worst.note}")]


def _device() -> torch.device:
    """Returns the device of this rank, which is connected."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
