"""Kernels in Triton for CUDA devices; on a CPU, and where they cannot run, torch computes the same.

Modules beside this file import triton and are themselves imported only where `available` says so.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gpt1_ds.common import log
from gpt1_ds.model.proof import proven

LEAST_CAPABILITY = (8, 0)  # bf16 matrix products and asynchronous copies


def available(device: torch.device) -> bool:
    """Whether tensors on `device` are computed by these kernels: where they can run, and are proven. Where a GPU cannot
    run them, rank 0 says why, once.
    """
    if device.type != "cuda":
        return False
    reason = why_not(device)
    if reason is not None:
        _say_once(reason)
    return reason is None and proven(device)


def empty_heads(x_GSH: Tensor) -> Tensor:
    """Memory for a result of this shape, laid out as [S, G, H], so that [S, B, width] is a view of it."""
    heads, positions, width = x_GSH.shape
    return x_GSH.new_empty(positions, heads, width).transpose(0, 1)


def attention_results(q_GSH: Tensor) -> tuple[Tensor, Tensor]:
    """What attention gives on a GPU, without values: out [G, S, H], and the log-sum-exp of each query's scores fp32
    [G, S]. Where torch computes it the second has no values at all; a compiled graph, which may be kept on disk, serves
    the kernels and torch.
    """
    return empty_heads(q_GSH), q_GSH.new_empty(q_GSH.shape[:2], dtype=torch.float32)


@lru_cache(maxsize=16)
def why_not(device: torch.device) -> str | None:
    """The reason in one sentence why a CUDA `device` cannot run the kernels; None where it can."""
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
