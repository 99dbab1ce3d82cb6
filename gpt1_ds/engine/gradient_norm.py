"""The gradient norm, precise enough for layouts to agree on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt1_ds.engine.adamw import AdamW
from gpt1_ds.engine.process_groups import ProcessGroups

_BLOCK = 1 << 18
_FEW = 8  # tensors: more are launched together


def square_sum(tensors: Iterable[Tensor]) -> Tensor:
    """Returns a fp32 scalar: the sum of squares of fp32 tensors (at least one).

    On a CPU block by block: torch's norm adds 2**24 numbers up in one fp32 sum and loses 0.3 % of it there, which
    would make the norm depend on how the layout cuts a matrix. It is also half as fast.
    """
    flat = [tensor.detach().reshape(-1).float() for tensor in tensors]
    if flat[0].is_cuda:
        norms = torch._foreach_norm(flat) if len(flat) > _FEW else [torch.linalg.vector_norm(values) for values in flat]
        return torch.stack(norms).square().sum()
    return torch.stack([torch.dot(block, block) for values in flat for block in values.split(_BLOCK)]).sum()


def clip_gradients(
    module: nn.Module, groups: ProcessGroups, clip: float, optimizer: AdamW, judge: Callable[[Tensor], Tensor] | None
) -> Tensor | float:
    """ZeRO 0: the global norm before gradients are scaled to `clip` (0: they are not). A step whose norm is not finite,
    or that `judge` gives a negative norm for, is not applied; its norm is infinite.
    """
    held = [(parameter, parameter.grad) for parameter in module.parameters() if parameter.grad is not None]
    gradients = [gradient for _, gradient in held]
    owned = [
        gradient
        for parameter, gradient in held
        if getattr(parameter, "tensor_model_parallel", False) or groups.tensor_rank == 0
    ]
    square = square_sum(owned) if owned else torch.zeros((), device=gradients[0].device)
    dist.all_reduce(square, group=groups.tensor_group)
    root = square.sqrt()
    if decides_on_device(root.device) and judge is None:
        return clip_in_update(optimizer, root, clip)
    norm = float(root if judge is None else judge(root))
    if not 0 <= norm < float("inf"):
        for parameter, _ in held:
            parameter.grad = None
        return float("inf")
    if clip and norm > clip:
        torch._foreach_mul_(gradients, clip / (norm + 1e-6))
    return norm


def decides_on_device(device: torch.device) -> bool:
    """Returns whether what follows from a norm is better decided where it is than on the host."""
    return device.type == "cuda"


def clip_in_update(optimizer: AdamW, norm: Tensor, clip: float, summed: int = 1) -> Tensor:
    """Lets the fused update itself divide gradients, which are sums over `summed` ranks, by what makes them means of a
    norm of at most `clip` (0: any), and do nothing where the norm is not finite: the host need not know it. Gives the
    norm, infinite for such a step.
    """
    finite = (norm >= 0) & (norm < torch.inf)  # DeepSpeed marks a norm that is not finite by -1
    optimizer.found_inf = (~finite).float()
    if clip:
        optimizer.grad_scale = divisor(norm, clip, summed)
    elif summed == 1:
        optimizer.grad_scale = None
    return torch.where(finite, norm, torch.inf)


def divisor(norm: Tensor, clip: float, summed: int = 1) -> Tensor:
    """Returns what to divide sums over `summed` ranks by, whose means have this norm."""
    scale = ((norm + 1e-6) / clip).clamp(min=1.0)  # DeepSpeed's and torch's eps
    return scale if summed == 1 else scale * summed
