"""What fake tensors would hold, as far as a step depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NUMBER = 2.0  # what every float read from the device is: above 1, so that clipping happens


def value_of(tensor: Tensor) -> float | int | bool:
    """Returns a value for a tensor without values: gradients are finite, nothing has overflowed, and norms are large
    enough to clip.
    """
    if tensor.dtype == torch.bool:
        return getattr(tensor, "truth", False)
    if tensor.dtype == torch.uint8:  # DeepSpeed's flags of overflow
        return 0
    return NUMBER if tensor.dtype.is_floating_point else 1


def remember_truth(name: str, args: Any, outputs: Iterable[Tensor]) -> None:
    """Whether a tensor of booleans holds. Everything is finite: torch asks |x| != inf and x == x. What is not known is
    False.
    """
    known = [getattr(one, "truth", False) for one in args if isinstance(one, Tensor)]
    truth: bool | None = None
    if (name == "ne" and args[1:] == (float("inf"),)) or (name == "eq" and args[0] is args[1]):
        truth = True
    elif name in ("all", "any", "_to_copy", "clone", "mul", "logical_and", "bitwise_and"):
        truth = all(known)
    elif name in ("logical_not", "bitwise_not"):
        truth = not known[0]
    if truth is not None:
        for output in outputs:
            if output.dtype == torch.bool:
                output.truth = truth  # type: ignore[attr-defined]
