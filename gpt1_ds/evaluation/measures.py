"""What an evaluation of masked text finds besides its loss, and how much the draw of masks matters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import Data
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import evaluation_batches
from gpt1_ds.objectives.base import TextObjective

OF_PAIRS = ("pair_loss", "pair_accuracy")  # means over rows, the others are over predicted tokens


@dataclass
class MaskedMeasures:
    """Means over global batches of held-out text. All ranks call it together."""

    engine: Engine
    objective: TextObjective
    shape: BatchShape
    predicted: int = 0  # tokens so far
    rows: int = 0  # so far
    _sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # this rank's part

    def add(self, rows: Sequence[Any], left: int) -> None:
        """Evaluates a global batch. `left` rows are in it and those after it; what fills it up counts nothing."""
        engine, global_batch = self.engine, self.shape.global_batch
        real = min(left, global_batch)
        all_tokens, real_tokens = self.objective.counts(rows[0], real, global_batch)
        engine.evaluate(evaluation_batches(self.objective, rows))
        self.predicted, self.rows = self.predicted + real_tokens, self.rows + real
        if engine.groups.tensor_rank or not engine.groups.is_last_stage:
            return  # one rank of a replica has them
        parts = len(engine.loss.measures) * engine.groups.layout.data
        for measures in engine.loss.measures:
            for name, mean in measures.items():
                self._sums[name] += float(mean) * (real if name in OF_PAIRS else all_tokens) / parts

    def means(self) -> dict[str, Any]:
        """Returns means by EvalRecord's names, the same on every rank. `loss` is that of the masked tokens alone."""
        ranks = self.engine.groups.gather(dict(self._sums))
        names = dict.fromkeys(name for sums in ranks for name in sums)
        counts = {name: self.rows if name in OF_PAIRS else self.predicted for name in names}
        return {name: sum(sums.get(name, 0.0) for sums in ranks) / counts[name] for name in names}


def mask_deviation(
    engine: Engine, data: Data, objectives: Sequence[TextObjective], shape: BatchShape, limit: int
) -> float:
    """Returns nats: the standard deviation of the loss over all held-out text among draws of its masks.

    It is that of the first `limit` global batches, each with the masks of all `objectives`, whose draws differ. Masks
    of two batches are independent, so variances add, and that of a mean falls with the number of rows.
    """
    assert data.held_out is not None, "the caller checks that there is a validation split"
    left, variance, predicted = data.held_out.rows, 0.0, 0
    for rows in data.held_out.batches(shape, limit):
        losses = []
        for objective in objectives:
            found = MaskedMeasures(engine, objective, shape)
            found.add(rows, left)
            losses.append(found.means()["loss"])
        variance += found.predicted**2 * float(np.var(losses, ddof=1))
        predicted, left = predicted + found.predicted, left - shape.global_batch
    fraction = (data.held_out.rows - max(0, left)) / data.held_out.rows
    return math.sqrt(variance * fraction) / predicted
