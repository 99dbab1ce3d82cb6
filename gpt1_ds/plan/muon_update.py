"""What Muon's update of blocks' matrices takes beside AdamW's (engine/muon.py): memory, time, bytes between ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpt1_ds.architecture.layer import Parameter
from gpt1_ds.config import Config
from gpt1_ds.config.sections import NEWTON_SCHULZ_STEPS
from gpt1_ds.plan.machine import Link, Speeds
from gpt1_ds.plan.stages import Stage

SCRATCH = 6  # copies of a weight while it is orthogonalised


class Muon:
    """The update of one rank of a stage; for another optimizer everything is 0."""

    def __init__(self, config: Config, world: int, stage: Stage) -> None:
        tensor, zero = config.parallel.tensor, config.parallel.zero
        self.ranks = world // config.parallel.pipeline  # that hold the stage
        data = self.ranks // tensor
        muon = config.optimizer.name == "muon"
        self.weights = [one for one in stage.held if one.matrices is not None] if muon else []
        local = sum(one.local_size(tensor) for one in self.weights)
        self.held = local / data if zero else local  # elements whose mean gradient the rank keeps
        self.owned = sum(one.size for one in self.weights) / self.ranks  # that it orthogonalises
        self.copies = 1 if zero else data

    @property
    def workspace(self) -> float:
        """Bytes while the update runs."""
        largest = SCRATCH * max((one.size for one in self.weights), default=0)
        swapped = self.owned * (1 + self.copies) * (self.ranks > 1)
        return 4 * (2 * self.held + swapped + largest)

    @property
    def sent(self) -> float:
        """Bytes of a step: mean gradients to the owners, what is orthogonal back to all who hold it."""
        return 4 * (self.ranks - 1) / self.ranks * self.owned * (1 + self.copies)

    def seconds(self, speeds: Speeds, link: Link) -> float:
        """Returns how long an update takes; `speeds` are those of fp32."""
        works = [sum(map(speeds.product, _products(weight))) for weight in self.weights]
        if not works:
            return 0.0
        return (
            max(sum(works) / self.ranks, *works) + 2 * math.log2(self.ranks) * link.latency + self.sent / link.bandwidth
        )


def _products(weight: Parameter) -> Iterator[float]:
    """FLOPs of each of a weight's products of matrices."""
    assert weight.matrices is not None, "it has matrices"
    short, long = sorted((weight.shape[0] // weight.matrices.count, weight.shape[1]))
    for _ in range(NEWTON_SCHULZ_STEPS * weight.matrices.count):
        yield from (2 * short * short * long, 2 * short**3, 2 * short * short * long)
