"""What an update by Muon takes beside AdamW's: bytes held, working memory, bytes sent and time.

Muon orthogonalises the matrices of the blocks, and has one moment of them; all other parameters are AdamW's. Newton-
Schulz needs a matrix whole: the ranks of a stage send the parts of its mean gradient to the one rank that owns it,
which computes, and sends the parts of the result back (engine/muon.py). Owners have about equal work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpt1_ds.architecture.layer import Parameter
from gpt1_ds.config import Config
from gpt1_ds.config.sections import NEWTON_SCHULZ_STEPS
from gpt1_ds.plan.machine import Link, Speeds
from gpt1_ds.plan.stages import Stage

SCRATCH = 6  # copies of a weight while it is orthogonalised


class MuonUpdate:
    """The update of one rank of a stage; for another optimizer everything is 0."""

    def __init__(self, config: Config, world: int, stage: Stage) -> None:
        tensor, zero = config.parallel.tensor, config.parallel.zero
        self.stage_ranks = world // config.parallel.pipeline
        data_ranks = self.stage_ranks // tensor
        is_muon = config.optimizer.name == "muon"
        self.weights = [weight for weight in stage.tensors if weight.matrices is not None] if is_muon else []
        local = sum(weight.local_size(tensor) for weight in self.weights)
        self.local_elements = local / data_ranks if zero else local  # whose mean gradient and moment the rank keeps
        self.owned_elements = sum(weight.size for weight in self.weights) / self.stage_ranks  # that it orthogonalises
        self.copies = 1 if zero else data_ranks  # of each element, on as many ranks

    @property
    def workspace(self) -> float:
        """Returns the bytes while the update runs."""
        scratch = SCRATCH * max((weight.size for weight in self.weights), default=0)
        exchanged = self.owned_elements * (1 + self.copies) * (self.stage_ranks > 1)
        return 4 * (2 * self.local_elements + exchanged + scratch)

    @property
    def sent(self) -> float:
        """Returns the bytes of a step: mean gradients to the owners, what is orthogonal back to all who hold it."""
        return 4 * (self.stage_ranks - 1) / self.stage_ranks * self.owned_elements * (1 + self.copies)

    def seconds(self, speeds: Speeds, link: Link) -> float:
        """Returns how long an update takes; `speeds` are those of fp32."""
        of_each = [sum(map(speeds.product, _products(weight))) for weight in self.weights]
        if not of_each:
            return 0.0
        computing = max(sum(of_each) / self.stage_ranks, *of_each)  # a weight is not divided
        return computing + 2 * math.log2(self.stage_ranks) * link.latency + self.sent / link.bandwidth


def _products(weight: Parameter) -> Iterator[float]:
    """Yields FLOPs of each product of matrices that a weight needs."""
    assert weight.matrices is not None, "it has matrices"
    short, long = sorted((weight.shape[0] // weight.matrices.count, weight.shape[1]))
    for _ in range(NEWTON_SCHULZ_STEPS * weight.matrices.count):
        yield from (2 * short * short * long, 2 * short**3, 2 * short * short * long)
