"""What counted kernels would take on an H100, by roofline. These are estimates: a GPU measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gpt1_ds.plan import cuda
from tools.fakecuda.counter import Kernel
from tools.fakecuda.work import FLASH, FLASH_BACKWARD

BANDWIDTH = 3.35e12 * 0.85  # bytes/s that large kernels reach
PRODUCTS = 989.4e12 * 0.68  # FLOP/s that large matrix products in bf16 reach
PEAK = 989.4e12  # FLOP/s
REACHED = {  # FLOP/s of the Triton kernels, as the planner assumes them
    name: part * PEAK for name, (part, _) in zip(("attention", "attention_backward"), cuda.EXACT, strict=True)
}
LAUNCH = 6.0e-6  # seconds of host time for an operation in eager mode

PRODUCT, ATTENTION, MASKS = "matrix products", "attention", "attention masks"
DROPOUT, ELEMENTWISE, LOSS = "hidden dropout", "bias, GELU, residual, LayerNorm", "softmax of the loss"
UPDATE = "gradients and optimizer"
CATEGORIES = (PRODUCT, ATTENTION, MASKS, DROPOUT, ELEMENTWISE, LOSS, UPDATE)
SIMPLE = (MASKS, DROPOUT, ELEMENTWISE)  # passes of a block and of the embedding
UPDATE_FILES = ("optimizer.py", "gradient_norm.py", "bf16.py", "bf16_optimizer.py", "stage_1_and_2.py")


@dataclass
class Work:
    """Sums up a category: launches, bytes, FLOPs, seconds on the device."""

    launches: int = 0
    bytes: int = 0
    flops: int = 0
    seconds: float = 0.0

    def add(self, kernel: Kernel) -> None:
        self.launches += kernel.launches
        self.bytes += kernel.read + kernel.written
        self.flops += kernel.flops
        self.seconds += seconds(kernel)


def seconds(kernel: Kernel) -> float:
    """On the device: what takes longest of moving its bytes, its products, and existing."""
    moved = kernel.read + kernel.written
    return max(moved / BANDWIDTH, kernel.flops / REACHED.get(kernel.name, PRODUCTS), kernel.launches * cuda.KERNEL)


def category(kernel: Kernel) -> str:
    """By the functions of this package that issued it; autograd's own backward pass shows none. What a compiler has
    fused does everything between two products.
    """
    if kernel.name in ("attention", "attention_backward", FLASH, FLASH_BACKWARD):
        return ATTENTION
    if kernel.name.startswith("triton_"):
        return ELEMENTWISE
    if kernel.name.startswith("softmax_"):
        return LOSS
    files = {caller.partition(":")[0] for caller in kernel.callers}
    if "attention_cpu.py:_keep" in kernel.callers or "transformer.py:_head_drop" in kernel.callers:
        return MASKS
    if files & {"attention.py", "attention_cpu.py"}:
        return ATTENTION
    if "dropout.py" in files:
        return DROPOUT
    if "cross_entropy.py" in files:
        return PRODUCT if kernel.flops else LOSS
    if kernel.phase in ("update", "reduction of gradients") or kernel.place.startswith(UPDATE_FILES):
        return UPDATE
    return PRODUCT if kernel.flops else ELEMENTWISE


def by_category(kernels: Iterable[Kernel]) -> dict[str, Work]:
    found = {name: Work() for name in CATEGORIES}
    for kernel in kernels:
        found[category(kernel)].add(kernel)
    return found


def most_expensive(kernels: Iterable[Kernel], count: int) -> list[tuple[str, Work]]:
    """The kernels of one name and place together, longest first."""
    found: dict[str, Work] = defaultdict(Work)
    for kernel in kernels:
        found[f"{kernel.name} ({kernel.place})"].add(kernel)
    return sorted(found.items(), key=lambda item: -item[1].seconds)[:count]
