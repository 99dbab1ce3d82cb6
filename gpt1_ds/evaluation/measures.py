"""What an engine finds of global batches of held-out text; and of masked text how much the draw of masks matters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpt1_ds.common.progress import Show, show_nothing
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import Data
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import evaluation_batches
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.causal import Causal

OF_PAIRS = ("pair_loss", "pair_accuracy")  # means over rows, the others are over predicted tokens


@dataclass(frozen=True)
class Measured:
    """Of some global batches, the same on every rank."""

    total: float  # nats
    predicted: int
    others: dict[str, float]  # EvalRecord's of masked text

    @property
    def loss(self) -> float:
        """Nats per predicted token."""
        return self.total / self.predicted


def mask_deviation(
    engine: Engine, data: Data, objectives: Sequence[TextObjective], shape: BatchShape, limit: int
) -> float:
    """Nats: the standard deviation of the loss over all held-out text among draws of its masks.

    It is that of the first `limit` global batches, each with the masks of all `objectives`, whose draws differ. Masks
    of two batches are independent, so variances add, and that of a mean falls with the number of rows.
    """
    assert data.held_out is not None, "the caller checks that there is a validation split"
    left, variance, predicted = data.held_out.rows, 0.0, 0
    for rows in data.held_out.batches(shape, limit):
        found = [measure(engine, objective, [rows], left, shape) for objective in objectives]
        variance += found[0].predicted ** 2 * float(np.var([one.loss for one in found], ddof=1))
        predicted, left = predicted + found[0].predicted, left - shape.global_batch
    share = (data.held_out.rows - max(0, left)) / data.held_out.rows
    return math.sqrt(variance * share) / predicted


def measure(
    engine: Engine,
    objective: TextObjective,
    batches: Sequence[Sequence[Any]],
    left: int,
    shape: BatchShape,
    show: Show = show_nothing,
) -> Measured:
    """`left` rows are in `batches` and those after them; what fills up the last batch counts nothing."""
    total, predicted, real_rows = 0.0, 0, 0
    here: dict[str, float] = defaultdict(float)  # this rank's sums
    for done, rows in enumerate(batches):
        show(done, total=len(batches))
        real = min(left, shape.global_batch)
        all_tokens, real_tokens = objective.counts(rows[0], real, shape.global_batch)
        total += engine.evaluate(evaluation_batches(objective, rows)) * all_tokens
        for name, mean in _means(engine).items():
            here[name] += mean * (shape.global_batch if name in OF_PAIRS else all_tokens)
        predicted, real_rows, left = predicted + real_tokens, real_rows + real, left - real
    if isinstance(objective, Causal):
        return Measured(total, predicted, {})
    sums = _sums(engine.groups.gather(dict(here)))
    total = sums.pop("loss")
    means = {name: value / (real_rows if name in OF_PAIRS else predicted) for name, value in sums.items()}
    return Measured(total, predicted, means)


def _means(engine: Engine) -> dict[str, float]:
    """This rank's share of the means over the last global batch: one rank of a replica has it."""
    if engine.groups.tensor_rank or not engine.groups.is_last_stage:
        return {}
    parts = len(engine.measures) * engine.groups.layout.data
    return {name: value / parts for name, value in _sums(engine.measures).items()}


def _sums(parts: Sequence[Mapping[str, float | torch.Tensor]]) -> dict[str, float]:
    """By name."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(float(part[name]) for part in parts if name in part) for name in names}
