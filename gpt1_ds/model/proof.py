"""Whether a GPU runs what only saves time: Triton kernels, CUDA graphs of micro-batches, gradients that are reduced
under the backward pass. Without them torch and DeepSpeed compute the same, more slowly.

They are on where the self-proof (`gpt1-ds doctor --gpu`) has passed with this toolchain, a GPU with a driver and
versions, and where somebody who knows says so: train.cuda_graphs=on, the self-proof itself, benchmarks. A proof is a
small JSON file in the user's cache; those of versions that the developers measured are in the package. The ranks of a
run agree (engine/session.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpt1_ds.common import log, memory
from gpt1_ds.common.files import user_cache, write_json
from gpt1_ds.common.versions import installed, source_hash

FORMAT = 1
PROVEN_SOURCES = ("model", "engine")  # packages: kernels, graphs and reductions, and what calls them
Toolchain = dict[str, str]


@dataclass(frozen=True)
class Proof:
    """`ranks`: on how many GPUs together; collectives are proven by several only."""

    toolchain: Toolchain
    ranks: int


MEASURED: tuple[Proof, ...] = ()  # by the developers: no GPU so far
_DECIDED: list[bool] = []  # of this process, at most one


def proven(device: torch.device) -> bool:
    """Returns whether what only saves time on a GPU may be on. Where nobody has decided, the proof does."""
    if device.type != "cuda":
        return False
    if not _DECIDED:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        decide(has_passed(device, ranks))
        if not _DECIDED[0]:
            log.say(unproven(device))
    return _DECIDED[0]


def is_decided() -> bool:
    return bool(_DECIDED)


def decide(answer: bool | None) -> None:
    """What `proven` says from now on in this process; None: that it asks for the proof again."""
    _DECIDED[:] = [] if answer is None else [answer]


def has_passed(device: torch.device, ranks: int) -> bool:
    """Returns whether the self-proof has passed with this GPU, on several GPUs if there are several ranks."""
    return passed(toolchain(device), ranks)


def toolchain(device: torch.device) -> Toolchain:
    """Returns what a proof of this GPU holds for."""
    return named_toolchain(torch.cuda.get_device_name(device), capability(device), torch.version.cuda)


def capability(device: torch.device) -> str:
    """Returns such as 9.0."""
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def unproven(device: torch.device) -> str:
    """Returns the line that says why a run is slow, and the way out."""
    return (
        "Triton kernels, CUDA graphs and overlapped reductions are off: no self-proof has passed with "
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__} and this program; "
        "`gpt1-ds doctor --gpu` takes two minutes and turns them on"
    )


def named_toolchain(device: str, capability: str, cuda: str | None) -> Toolchain:
    """Returns what a proof holds for: a GPU's name and compute capability and the version of CUDA, as torch says them,
    and what is installed: the driver, the libraries and this program's sources.
    """
    return {
        "device": device,
        "capability": capability,
        "driver": (memory.driver_version() or "unknown").partition(".")[0],
        "cuda": str(cuda),
        **{package: installed(package) or "none" for package in ("torch", "triton", "deepspeed")},
        "code": source_hash(*PROVEN_SOURCES),
    }


def passed(tools: Toolchain, ranks: int) -> bool:
    """Returns whether a proof holds for `tools` on `ranks` ranks."""
    known = [*MEASURED, *filter(None, [_read(_path(tools))])]
    return any(one.toolchain == tools and (ranks == 1 or one.ranks > 1) for one in known)


def keep(tools: Toolchain, ranks: int) -> Path:
    """Writes that `tools` have passed on `ranks` ranks, and returns the file. A proof on several ranks stays."""
    path = _path(tools)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not passed(tools, ranks):
        write_json(path, {"format": FORMAT, **asdict(Proof(tools, ranks))})
    return path


def forget(tools: Toolchain) -> None:
    """`tools` have failed: a proof that the user's cache has is not believed any more."""
    _path(tools).unlink(missing_ok=True)


def _path(tools: Mapping[str, str]) -> Path:
    name = hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()[:16]
    return user_cache() / "proofs" / f"{name}.json"


def _read(path: Path) -> Proof | None:
    """Returns the proof in a file; None where there is no file, or one that nobody can read: the self-proof writes it
    again.
    """
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        if raw.pop("format") != FORMAT:
            return None
        found = Proof(**raw)
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found.toolchain, dict) and isinstance(found.ranks, int) else None
