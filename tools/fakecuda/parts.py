"""What a block of the model launches for one micro-batch, and what both ends do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.fakecuda import ranks, roofline, steps
from tools.fakecuda.counter import Kernel
from tools.fakecuda.steps import Step

FORWARD, BACKWARD = ("forward", "loss"), ("backward",)  # how the phases of a micro-batch begin


@dataclass(frozen=True)
class Part:
    """Launches of a micro-batch; bytes that its kernels move, but for products and attention. What adds gradients up
    is in neither.
    """

    forward: int = 0
    backward: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> Part:
        passes = [
            kernel
            for kernel in kernels
            if kernel.phase.startswith(FORWARD + BACKWARD) and roofline.category(kernel) != roofline.UPDATE
        ]
        simple = [kernel for kernel in passes if roofline.category(kernel) in roofline.SIMPLE]
        return cls(
            sum(kernel.launches for kernel in passes if kernel.phase.startswith(FORWARD)),
            sum(kernel.launches for kernel in passes if kernel.phase.startswith(BACKWARD)),
            sum(kernel.read + kernel.written for kernel in simple),
        )

    def __sub__(self, other: Part) -> Part:
        return Part(self.forward - other.forward, self.backward - other.backward, self.bytes - other.bytes)

    @property
    def kernels(self) -> int:
        return self.forward + self.backward


def block_and_ends(overrides: Sequence[str], world: int, presets: Sequence[str]) -> tuple[Part, Part]:
    """Returns the parts of a model that takes one micro-batch to a step. Where a block is one graph, its kernels tell
    that they are of a block; in an eager backward pass nothing does, so a model of two blocks is compared with one of
    one.
    """
    one = _step(overrides, world, presets, layers=1)
    if one.config.train.compile == "on" and one.config.model.attention == "exact":
        block = Part.of(kernel for kernel in one.counts.kernels if _is_of_a_block(kernel))
    else:
        block = Part.of(_step(overrides, world, presets, layers=2).counts.kernels) - Part.of(one.counts.kernels)
    return block, Part.of(one.counts.kernels) - block


def _is_of_a_block(kernel: Kernel) -> bool:
    """Returns whether the forward pass of transformer.py issued it, and no norm that embeddings or heads have of it."""
    ends = any(caller.startswith(("embeddings.py:", "heads.py:")) for caller in kernel.callers)
    return "transformer.py:forward" in kernel.callers and not ends


def _step(overrides: Sequence[str], world: int, presets: Sequence[str], layers: int) -> Step:
    step = ranks.run(steps.warm_step, [*overrides, f"model.layers={layers}"], world, presets, world=world)
    assert step.micro_batches == 1, step.config.train
    return step
