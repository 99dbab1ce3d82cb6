"""Launches and FLOPs of an operation, where its tensors alone do not tell them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

FOREACH_LISTS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}  # tensors of one launch of torch's multi_tensor_apply, by lists
FOREACH_CHUNK, FOREACH_BLOCKS = 65536, 320  # elements of a block, blocks of a launch
FLASH, FLASH_BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
CAUSAL = {FLASH: 4, FLASH_BACKWARD: 11}  # the place of `is_causal` among the arguments
KERNELS = {"attention_backward": 2, FLASH_BACKWARD: 3}  # launches of operations that take more than one
CAUSAL_PRODUCTS = {"attention": 2, "attention_backward": 7}  # that the kernels compute: three for q, four for k and v


def flops_of(name: str, args: Any, kwargs: Any, result: Any) -> int:
    """As torch counts them, also of products that add to a tensor in place; causal attention is half of its own."""
    count = flop_registry.get(getattr(torch.ops.aten, name.rstrip("_"), None))
    flops = int(count(*args, **kwargs, out_val=result)) if count else 0
    return flops // 2 if name in CAUSAL and args[CAUSAL[name]] else flops


def causal_flops(name: str, outputs: list[Tensor]) -> int:
    """Returns the FLOPs of attention kernels: half of [S, S] for each product. The loss has no products of its own."""
    if name not in CAUSAL_PRODUCTS:
        return 0
    groups, positions, width = outputs[0].shape[-3:]
    return CAUSAL_PRODUCTS[name] * groups * positions**2 * width


def foreach_launches(name: str, args: Any) -> int:
    """Returns the launches for many tensors together; one after another where their types differ, but for a copy."""
    lists = [one for one in args if isinstance(one, (list, tuple)) and one and isinstance(one[0], Tensor)]
    tensors = lists[0] if lists else []
    if name != "_foreach_copy_" and len({tensor.dtype for one in lists for tensor in one}) > 1:
        return len(tensors)
    chunks = sum(-(-tensor.numel() // FOREACH_CHUNK) for tensor in tensors)
    limit = FOREACH_LISTS.get(max(1, len(lists)), 30)
    return max(1, -(-len(tensors) // limit), -(-chunks // FOREACH_BLOCKS))
