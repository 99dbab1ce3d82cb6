"""Whether a GPU runs what only saves time: Triton kernels, CUDA graphs of micro-batches, gradients that are reduced
under the backward pass. Without them torch and DeepSpeed compute the same, more slowly.

They are on where the self-proof has passed with this device and these versions (plan/proof.py), and where somebody who
knows says so: train.cuda_graphs=on, the self-proof itself, benchmarks. The ranks of a run agree (engine/session.py).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from gpt1_ds.common import log
from gpt1_ds.plan import proof

_DECIDED: list[bool] = []  # of this process, at most one


def proven(device: torch.device) -> bool:
    """The one question that all of them ask; a CPU has none of them. Where nobody has decided, the proof does."""
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
    """Whether the self-proof has passed with this GPU, on several GPUs if there are several ranks."""
    return proof.passed(toolchain(device), ranks)


def toolchain(device: torch.device) -> proof.Toolchain:
    """What a proof of this GPU holds for."""
    return proof.toolchain(torch.cuda.get_device_name(device), capability(device), torch.version.cuda)


def capability(device: torch.device) -> str:
    """Such as 9.0."""
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def unproven(device: torch.device) -> str:
    """The line that says why a run is slow, and the way out."""
    return (
        "Triton kernels, CUDA graphs and overlapped reductions are off: no self-proof has passed with "
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__} and this program; "
        "`gpt1-ds doctor --gpu` takes two minutes and turns them on"
    )
