"""What LAMB and Adafactor take beside AdamW: sums over the ranks of a stage, other moments, more passes over memory."""

from __future__ import annotations

import math

from gpt1_ds.config import Config
from gpt1_ds.plan.stages import Stage

PASSES = {"lamb": 6.0, "adafactor": 5.0}  # bytes that an update reads and writes, by AdamW's 28 an element: counted
COPIES = 4  # of the largest part of a weight, while its update is computed


class WholeParametersUpdate:
    """The update of one rank of a stage; for another optimizer nothing is different from AdamW."""

    def __init__(self, config: Config, world: int, stage: Stage) -> None:
        self.name, self.zero, tensor = config.optimizer.name, config.parallel.zero, config.parallel.tensor
        self.ranks = world // config.parallel.pipeline  # that hold the stage
        self.data = self.ranks // tensor
        self.parameters = stage.parameters
        self.vectors = sum(one.local_size(tensor) for one in stage.held if len(one.shape) == 1)
        self.largest = max((one.local_size(tensor) for one in stage.held), default=0)
        count = {one.name: one.matrices.count if one.matrices else 1 for one in stage.held}
        self.factors = [
            math.prod(one.shape[:-1]) + count[one.name] * one.shape[-1] for one in stage.held if len(one.shape) > 1
        ]
        self.numbers = sum(count.values())

    @property
    def spared(self) -> float:
        """Bytes of AdamW's two moments that this optimizer does not keep."""
        if self.name != "adafactor":
            return 0.0
        cut = self.data if self.zero else 1
        held = float(sum(self.factors))
        if self.zero in (1, 2) and self.data > 1:  # a rank has a run of whole parameters, and a part of the last
            held = min(held, held / self.data + max(self.factors, default=0))
        return 4 * ((2 * self.parameters - self.vectors) / cut - held)

    @property
    def workspace(self) -> float:
        """Bytes while the update runs."""
        return 4.0 * COPIES * self.largest if self.name in PASSES else 0.0

    @property
    def sent(self) -> float:
        """Bytes of a step: sums of squares, to all ranks of the stage."""
        if self.name not in PASSES:
            return 0.0
        numbers = 2 * self.numbers + (sum(self.factors) if self.name == "adafactor" else 0)
        return 4 * numbers * 2 * (self.ranks - 1) / self.ranks

    @property
    def passes(self) -> float:
        """How often AdamW's time an update takes."""
        return PASSES.get(self.name, 1.0)
