"""Which device ranks compute on, and where torch's compiler and Triton keep what they make for a GPU, so that it
outlives a process. A job that was given GPUs never trains on a CPU unless its configuration says so.

Both write a file beside its place and rename it, so ranks and hosts may share the folder. Both trust what they find
there (torch unpickles it): the folder is this user's alone.

`prepare` decides before torch is imported, `choose` in every rank. Only `choose` imports torch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.common import log, memory
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import user_cache
from gpt1_ds.common.text import amount
from gpt1_ds.config import Config
from gpt1_ds.config.sections import AUTO
from gpt1_ds.plan.machine import expected
from gpt1_ds.plan.planning import usable_bytes, with_micro_batch

if TYPE_CHECKING:
    import torch


VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}  # read when something is compiled


def use() -> None:
    """Names the user's cache in the environment; what is named there already stays. Where nobody can write into that
    cache or others can, the libraries keep their own choice.
    """
    folder = user_cache() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        problem = _problem(folder)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is not None:
        log.say(f"{folder}: {problem}; kernels are compiled again where the libraries' own caches are lost")
        return
    for variable, name in VARIABLES.items():
        os.environ.setdefault(variable, str(folder / name))


def _problem(folder: Path) -> str | None:
    """Returns why what lies in this folder may not be this user's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write into it (chmod 700 forbids it)"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


PCI_DEVICES = Path("/sys/bus/pci/devices")
DETERMINISTIC = {  # cuBLAS with workspaces of its own; NCCL sums in one order
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
RECORDER = {  # of NCCL: the last collectives of each rank, which the watchdog keeps when one hangs
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
GRAPHS = {
    "NCCL_GRAPH_REGISTER": "0"
}  # NCCL sums within a CUDA graph as outside: both can be compared (engine/graphs.py)
KERNELS = {
    "TRITON_DEFAULT_FP_FUSION": "1"
}  # a product and a sum in one instruction, as every Triton up to 3.9 does: a later one would give other bits
_SLURM = ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")  # what SLURM says to a job of its GPUs
_HIDDEN = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that show none


def prepare(config: Config, ranks: int | None = None) -> None:
    """Sets what CUDA and DeepSpeed read from the environment when they are loaded. `ranks`: of this host, where it is
    this process that starts them.

    Raises ConfigError where GPUs are promised and the installed torch has no CUDA, or has fewer GPUs than ranks.
    """
    if config.train.device == "cpu":
        os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu")
        return
    promise = promised(config.train.device, config.slurm.gpus, os.environ)
    if promise and not has_cuda_build():
        raise ConfigError(_refusal(promise, f"torch {importlib.metadata.version('torch')} is a CPU build"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if promise and ranks and visible is not None and visible not in _HIDDEN:
        ConfigError.raise_all(too_many(ranks, len(visible.split(","))))
    if config.train.deterministic:
        os.environ.update(DETERMINISTIC)
    if promise:
        use()
        for name, value in {**RECORDER, **GRAPHS, **KERNELS}.items():
            os.environ.setdefault(name, value)
    if promise and config.parallel.tensor > 1:  # kernels start in the order of their calls: products, then all-reduces
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def promised(device: str, gpus_per_node: int, environment: Mapping[str, str]) -> str | None:
    """Returns what says that this process has GPUs, with `train.device` and `slurm.gpus_per_node` as given; None when
    nothing does.
    """
    if device == "cuda":
        return "train.device=cuda"
    if device == "cpu":
        return None
    if gpus_per_node and "SLURM_JOB_ID" in environment:
        return f"slurm.gpus_per_node={gpus_per_node}"
    named = next(
        (f"{name}={environment[name]}" for name in _SLURM if environment.get(name, "0") not in ("0", "")), None
    )
    if named or environment.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return named
    sign = memory.sign_of_driver()
    return f"{sign} (an NVIDIA driver)" if sign else None


def with_fitted_micro_batch(config: Config, world: int) -> Config:
    """Returns `config` for `world` ranks: with train.micro_batch=auto, as many sequences as fit into the memory of this
    host's GPUs (at a login node: those that the planner assumes), or of this host.
    """
    if config.train.micro_batch != AUTO:
        return config
    promise = promised(config.train.device, config.slurm.gpus, os.environ)
    cuda = config.train.device != "cpu" and bool(config.slurm.gpus or (promise and has_cuda_build()))
    machine = expected("cuda" if cuda else "cpu")
    memory_gib = gpu_gib() if cuda else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = replace(machine, memory_gib=memory_gib or machine.memory_gib)
    return with_micro_batch(config, world, machine.device, usable_bytes(None, machine, world))


def gpu_gib() -> float | None:
    """Returns the memory of the smallest GPU of this host, GiB; None where nothing answers."""
    return min(memory.memory_mib(), default=0.0) / 1024 or None


def shares(config: Config, ranks: int, jobs: int) -> list[str]:
    """Returns for each of `jobs` runs at a time, each of `ranks` ranks, the GPUs that it sees, as CUDA_VISIBLE_DEVICES
    names them. Runs share GPUs where there are too few; none are named where runs compute on CPUs.
    """
    if config.train.device == "cpu" or not promised(config.train.device, config.slurm.gpus, os.environ):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = memory.indices() if visible is None else visible.split(",")
    parts = [",".join(found[at : at + ranks]) for at in range(0, len(found) - ranks + 1, ranks)]
    return [parts[number % len(parts)] for number in range(jobs)] if parts else []


def has_cuda_build() -> bool:
    """Returns whether the installed torch was built for CUDA, without importing it."""
    found = importlib.util.find_spec("torch")
    places = found.submodule_search_locations if found else None
    return any(Path(place, "lib", "libtorch_cuda.so").exists() for place in places or ())


def choose(config: Config) -> torch.device:
    """Returns this rank's device, bound to the cores beside it. Raises ConfigError alike on all ranks of a host."""
    import torch

    if config.train.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if promise := promised(config.train.device, config.slurm.gpus, os.environ):
            raise ConfigError(
                _refusal(promise, f"torch {torch.__version__} sees no GPU (is the driver too old for it?)")
            )
        return torch.device("cpu")
    count = torch.cuda.device_count()
    local, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    one_each = count == 1 and _task_per_rank(os.environ)
    if not one_each:
        ConfigError.raise_all(too_many(ranks, count))
    if count == 1:  # DeepSpeed takes the device of this number
        os.environ["LOCAL_RANK"] = "0"
    if config.train.deterministic:
        _repeat()
    device = torch.device("cuda", 0 if count == 1 else local)
    torch.cuda.set_device(device)
    bind(bus_address(torch.cuda.get_device_properties(device)))
    return device


def _repeat() -> None:
    """Lets this process choose kernels that repeat to the bit."""
    import torch
    from torch._inductor import config as compiler

    torch.use_deterministic_algorithms(True)
    # else a kernel writes every empty tensor first, which nobody reads
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # no sum of a product in parts
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    # else the compiler measures, and what is fastest may differ from start to start: whether it pads a product, say
    compiler.deterministic = True
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # of the processes that compile for this one


def too_many(ranks: int, devices: int) -> Iterator[str]:
    """Yields a line where ranks would share a GPU, which NCCL refuses."""
    if ranks > devices:
        gpus = amount(devices, "visible GPU")
        yield f"{ranks} ranks on a host with {gpus}; start {devices} at most, or say train.device=cpu"


def bind(address: str, devices: Path = PCI_DEVICES) -> None:
    """Keeps this process on the cores beside the PCI device `address`, where the system says which they are."""
    try:
        near = cores((devices / address / "local_cpulist").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if near := near & os.sched_getaffinity(0):
        os.sched_setaffinity(0, near)


def cores(text: str) -> set[int]:
    """Returns the numbers in a list as Linux writes it: "0-3,8" is 0, 1, 2, 3 and 8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def bus_address(properties: object) -> str:
    """Returns where Linux lists a GPU: "0000:1b:00.0"."""
    domain, bus, slot = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _task_per_rank(environment: Mapping[str, str]) -> bool:
    """Returns whether srun started this rank, which may then see its own GPU alone."""
    return "SLURM_LOCALID" in environment and "TORCHELASTIC_RUN_ID" not in environment


def _refusal(promise: str, missing: str) -> str:
    return (
        f"{promise} promises a GPU, but {missing}; install the CUDA build (bash tools/setup.sh --gpu), "
        "or say train.device=cpu"
    )
