"""What an update by LAMB or Adafactor takes beside AdamW's: bytes held, working memory, bytes sent and time.

Both need sums over whole parameters, so the ranks of a stage add numbers up. LAMB keeps AdamW's two moments. Adafactor
keeps one, and of a matrix only its means over rows and over columns; every rank with a part of it keeps them all:

    numbers kept of            AdamW, LAMB         Adafactor
    a bias        [768]        2 x 768             768
    a matrix      [3072, 768]  2 x 3072 x 768      3072 + 768
    q, k and v    [2304, 768]  2 x 2304 x 768      2304 + 3 x 768      one weight, three matrices
"""

from __future__ import annotations

import math

from gpt1_ds.config import Config
from gpt1_ds.plan.stages import Stage

PASSES = {"lamb": 6.0, "adafactor": 5.0}  # bytes that an update reads and writes, by AdamW's 28 an element: counted
COPIES = 4  # of the largest part of a weight, while its update is computed


class WholeParametersUpdate:
    """The update of one rank of a stage; for another optimizer nothing is different from AdamW."""

    def __init__(self, config: Config, world: int, stage: Stage) -> None:
        tensor = config.parallel.tensor
        self.optimizer, self.zero = config.optimizer.name, config.parallel.zero
        self.stage_ranks = world // config.parallel.pipeline
        self.data_ranks = self.stage_ranks // tensor
        self.parameters = stage.parameters
        self.vector_elements = self.largest = self.matrices = 0
        self.factors: list[int] = []  # Adafactor's numbers of each weight
        for parameter in stage.tensors:
            local, count = parameter.local_size(tensor), parameter.matrices.count if parameter.matrices else 1
            self.largest = max(self.largest, local)
            self.matrices += count
            if len(parameter.shape) == 1:
                self.vector_elements += local
            else:
                self.factors.append(math.prod(parameter.shape[:-1]) + count * parameter.shape[-1])

    @property
    def spared(self) -> float:
        """Returns the bytes of AdamW's two moments that this optimizer does not keep."""
        if self.optimizer != "adafactor":
            return 0.0
        partitions = self.data_ranks if self.zero else 1
        factors = float(sum(self.factors))
        if self.zero in (1, 2) and self.data_ranks > 1:  # a rank has a run of whole parameters, and a part of the last
            factors = min(factors, factors / self.data_ranks + max(self.factors, default=0))
        return 4 * ((2 * self.parameters - self.vector_elements) / partitions - factors)

    @property
    def workspace(self) -> float:
        """Returns the bytes while the update runs."""
        return 4.0 * COPIES * self.largest if self.optimizer in PASSES else 0.0

    @property
    def sent(self) -> float:
        """Returns the bytes of a step: sums of squares, to all ranks of the stage."""
        if self.optimizer not in PASSES:
            return 0.0
        sums = 2 * self.matrices + (sum(self.factors) if self.optimizer == "adafactor" else 0)
        return 4 * sums * 2 * (self.stage_ranks - 1) / self.stage_ranks

    @property
    def passes(self) -> float:
        """Returns how often AdamW's time an update takes."""
        return PASSES.get(self.optimizer, 1.0)
