"""The operations that this program computes itself, each in two ways: `X.py` defines the operation, says which device
computes it how, and has the CPU's way (attention's is attention_cpu.py); `X_triton.py` has the kernels for CUDA
devices.

A module with triton in its name imports triton, and is itself imported only where `available` says so.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from types import ModuleType

import torch

from gpt1_ds.common import log
from gpt1_ds.model.proof import proven

LEAST_CAPABILITY = (8, 0)  # bf16 matrix products and asynchronous copies


def available(device: torch.device) -> bool:
    """Returns whether Triton computes tensors on `device`: where it can, and is proven. Where a GPU cannot run the
    kernels, rank 0 says why, once.
    """
    if device.type != "cuda":
        return False
    reason = why_not(device)
    if reason is not None:
        _say_once(reason)
    return reason is None and proven(device)


def module(name: str, device: torch.device) -> ModuleType | None:
    """Returns this package's module of that name, which imports triton; None where none is `available`."""
    return importlib.import_module(f"{__name__}.{name}") if available(device) else None


@lru_cache(maxsize=16)
def why_not(device: torch.device) -> str | None:
    """Returns the reason in one sentence why a CUDA `device` cannot run the kernels; None where it can."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported ({error}): torch computes attention and the loss, more slowly"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        name, found, least = torch.cuda.get_device_name(device), _version(capability), _version(LEAST_CAPABILITY)
        return (
            f"{name} has compute capability {found}, the kernels need {least}: "
            "torch computes attention and the loss, more slowly"
        )
    return None


@lru_cache(maxsize=16)
def _say_once(reason: str) -> None:
    log.say(reason)


def _version(capability: tuple[int, int]) -> str:
    return ".".join(str(part) for part in capability)
