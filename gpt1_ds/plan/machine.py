"""What a machine can do, in numbers that `plan --calibrate` measures or that are assumed of a named GPU.

A machine file is JSON, found as --machine PATH or NAME, else $GPT1_DS_MACHINE, else ~/.cache/gpt1-ds/machine.json. The
assumed numbers are round ones from public measurements (data sheets, torch and NCCL benchmarks); they rank layouts, and
a measured file replaces them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import user_cache, write_json
from gpt1_ds.plan import cuda
from gpt1_ds.plan.cuda import DataSheet

VARIABLE = "GPT1_DS_MACHINE"
FORMAT = 2  # 1 had no `memory`
CPU_FACTS = Path("/proc/cpuinfo")
CORE_TFLOPS = {  # the flag of a CPU's units -> what a core reaches; the fastest first
    "amx_bf16": {"fp32": 0.11, "bf16": 0.8},
    "avx512_bf16": {"fp32": 0.11, "bf16": 0.18},
    "avx512f": {"fp32": 0.11, "bf16": 0.11},
    "avx2": {"fp32": 0.06, "bf16": 0.06},  # model/products.py: the same products
}


RATES = ("gelu", "norm", "dropout", "loss", "stream", "memory", "update")  # of Speeds: one number each


@dataclass(frozen=True)
class Speeds:
    """What one rank reaches while `ranks` of them work on a node. Rates are per second, of forward and backward pass
    together where no comment says which. Backward passes take twice as long as forward ones, attention's excepted.
    """

    ranks: int
    gemm: tuple[tuple[float, float], ...]  # (FLOPs of one matrix product, FLOPs per second), ascending
    exact: tuple[float, float]  # attention scores (S x S of every head) of exact attention: (forward, backward)
    fused: tuple[float, float]  # of fused attention
    gelu: float  # elements
    norm: float  # elements, the residual sum included
    dropout: float  # elements
    loss: float  # logits
    stream: float  # bytes read or written by simple passes over activations
    memory: float  # the same over what no cache holds: parameters and gradients
    update: float  # parameters of AdamW, the gradient norm included
    launch: float  # seconds that the host needs to start an operator, autograd's part included

    def product(self, flops: float) -> float:
        """Returns the seconds of one matrix product; between measured sizes the rate is on a log-log line."""
        sizes = self.gemm
        if flops <= sizes[0][0] or len(sizes) == 1:
            return flops / sizes[0][1]
        for (small, slow), (large, fast) in pairwise(sizes):
            if flops <= large:
                weight = math.log(flops / small) / math.log(large / small)
                return flops / math.exp((1 - weight) * math.log(slow) + weight * math.log(fast))
        return flops / sizes[-1][1]


@dataclass(frozen=True)
class Link:
    """The connection between neighbours in a ring."""

    latency: float  # seconds of one message
    bandwidth: float  # bytes per second of one rank, each way


@dataclass(frozen=True)
class Machine:
    name: str
    source: str  # where the numbers come from, for people
    device: str  # cpu or cuda
    memory_gib: float  # of one rank's device; on a cpu, of the node
    ranks_per_node: int
    peak_tflops: dict[str, float]  # of one rank by precision; a plan says which fraction of it is used
    speeds: dict[str, tuple[Speeds, ...]]  # by precision; ascending in ranks
    node: Link
    network: Link

    @property
    def measured(self) -> bool:
        return self.source.startswith("measured")

    def speeds_with(self, precision: str, ranks: int) -> Speeds:
        """Returns the speeds at the measured number of ranks that is nearest from above; beyond the largest, shared
        evenly.
        """
        measured = self.speeds.get(precision)
        if measured is None:
            choices = ", ".join(self.speeds)
            raise ConfigError(f"train.precision={precision}: {self.name} has speeds of {choices}; use one of these")
        for speeds in measured:
            if ranks <= speeds.ranks:
                return speeds
        most = measured[-1]
        return most if self.device == "cuda" else _divided(most, ranks / most.ranks)

    def link(self, span: int, stride: int = 1) -> Link:
        """Returns the link of every `stride`-th of `span` consecutive ranks. Beyond a node each member brings its own
        network port.
        """
        if span <= self.ranks_per_node:
            return self.node
        members = max(1, self.ranks_per_node // stride)
        return Link(self.network.latency, min(self.node.bandwidth, members * self.network.bandwidth))


def _divided(speeds: Speeds, by: float) -> Speeds:
    """Returns the speeds of a rank where `by` times as many ranks work on the same cores."""
    slower: dict[str, Any] = {name: getattr(speeds, name) / by for name in RATES}
    slower["gemm"] = tuple((size, rate / by) for size, rate in speeds.gemm)
    for name in ("exact", "fused"):
        slower[name] = tuple(rate / by for rate in getattr(speeds, name))
    return replace(speeds, **slower, launch=speeds.launch * by)


def default_path() -> Path:
    return user_cache() / "machine.json"


def expected(device: str) -> Machine:
    """Returns the machine that a run on "cuda" or "cpu" is planned for: find_machine's, if it is of that kind."""
    machine = find_machine(None, device)
    return machine if machine.device == device else assumed(device)


def assumed(device: str) -> Machine:
    return PRESETS["h100" if device == "cuda" else "cpu"]


def find_machine(name: str | None = None, device: str = "cuda") -> Machine:
    """Returns the machine of this name or file, else of $GPT1_DS_MACHINE, else the one measured here, else what is
    assumed of one with this device.
    """
    wanted = name or os.environ.get(VARIABLE)
    if wanted in PRESETS:
        return PRESETS[wanted]
    if wanted:
        return read(Path(wanted))
    if os.path.exists(default_path()):  # noqa: PTH110 - Path's raises where the home is closed (`su` without `-`)
        return read(default_path())
    return assumed(device)


def read(path: Path) -> Machine:
    """Returns the machine of a file. Raises ConfigError for a file that is not a machine's."""
    try:
        return _machine(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        presets = ", ".join(PRESETS)
        raise ConfigError(
            f"--machine={path}: no such file; name one of {presets}, or write it: gpt1-ds plan --calibrate"
        ) from None
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path}: not a machine file ({problem}); write it again: gpt1-ds plan --calibrate") from None


def write(machine: Machine, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, **asdict(machine)})


def _machine(raw: Mapping[str, Any]) -> Machine:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r}, this program reads {FORMAT}")
    values = {field.name: raw[field.name] for field in fields(Machine)}
    values["speeds"] = {name: tuple(map(_speeds, measured)) for name, measured in raw["speeds"].items()}
    values["node"], values["network"] = Link(**raw["node"]), Link(**raw["network"])
    machine = Machine(**values)
    numbers = [machine.memory_gib, machine.ranks_per_node, *machine.peak_tflops.values()]
    numbers += [machine.node.bandwidth, machine.network.bandwidth]
    if not machine.speeds or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError("a number is not above 0")
    return machine


def _speeds(raw: Mapping[str, Any]) -> Speeds:
    pairs = {key: tuple(float(rate) for rate in raw[key]) for key in ("exact", "fused")}
    gemm = tuple((float(size), float(rate)) for size, rate in raw["gemm"])
    speeds = Speeds(**{**raw, **pairs, "gemm": gemm})
    rates = [getattr(speeds, field.name) for field in fields(Speeds) if field.name not in ("gemm", *pairs)]
    rates += [*speeds.exact, *speeds.fused, *(number for pair in gemm for number in pair)]
    if not gemm or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError("a speed is not above 0")
    return speeds


def _gpu(name: str, sheet: DataSheet) -> Machine:
    """Returns what is assumed of a GPU by its data sheet."""
    peaks = {"bf16": sheet.tflops, "fp16": sheet.tflops, "fp32": sheet.tflops_fp32}
    return Machine(
        name=name,
        source="assumed from data sheets and public measurements",
        device="cuda",
        memory_gib=sheet.memory_gib,
        ranks_per_node=8,
        peak_tflops=peaks,
        speeds={precision: (Speeds(ranks=8, **sheet.rates(precision)),) for precision in peaks},
        node=Link(cuda.NODE_LATENCY, cuda.STREAM * sheet.link),
        network=Link(cuda.NETWORK_LATENCY, cuda.STREAM * sheet.network),
    )


def cpu(cores: int, units: str, memory_gib: float) -> Machine:
    """Returns what is assumed of a server with so many cores, the best of whose units for products are `units`
    (CORE_TFLOPS). `plan --calibrate` measures the real ones.
    """
    counts = sorted({1, cores, *(2**power for power in range(1, cores.bit_length()) if 2**power < cores)})
    speeds = {}
    for precision, size in (("fp32", 4), ("bf16", 2)):
        product = 1e12 * CORE_TFLOPS[units][precision]
        speeds[precision] = tuple(
            Speeds(
                ranks=ranks,
                gemm=((1e7, 0.4 * product / slow), (1e9, product / slow), (1e10, product / slow)),
                exact=(2.5e8 / slow, 1.2e8 / slow),
                fused=(2.5e8 / slow, 1.2e8 / slow),
                gelu=2e8 / slow,
                norm=1.2e8 / slow,
                dropout=1.5e8 / slow,
                loss=1.5e8 / slow,
                stream=32e9 / size / slow,
                memory=1e10 / slow,
                update=2e8 / slow,
                launch=6e-6,
            )
            for ranks, slow in ((count, count / cores) for count in counts)
        )
    return Machine(
        name="cpu",
        source=f"assumed of {cores} core{'s' * (cores > 1)} with {units.replace('_', ' ').upper()}",
        device="cpu",
        memory_gib=memory_gib,
        ranks_per_node=cores,
        peak_tflops=CORE_TFLOPS[units],
        speeds=speeds,
        node=Link(1e-4, 1e9),
        network=Link(2e-4, 1e9),
    )


def here() -> Machine:
    """Returns what is assumed of this machine's CPU by its flags."""
    try:
        flags = set(CPU_FACTS.read_text(encoding="utf-8").split())
    except OSError:
        flags = set()
    units = next((name for name in CORE_TFLOPS if name in flags), "avx2")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return cpu(len(os.sched_getaffinity(0)), units, memory)


PRESETS = {**{name: _gpu(name, sheet) for name, sheet in cuda.DATA_SHEETS.items()}, "cpu": here()}
