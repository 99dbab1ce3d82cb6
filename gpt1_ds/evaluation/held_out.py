"""Loss on text that was held out from training."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpt1_ds.common.progress import Show, show_nothing
from gpt1_ds.data.loader import BatchShape, Rows
from gpt1_ds.data.sources import Data
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import evaluation_batches
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.causal import Causal
from gpt1_ds.tracking.record import EvalRecord

OF_PAIRS = ("pair_loss", "pair_accuracy")  # means over rows, the others are over predicted tokens


@dataclass(frozen=True)
class _Measured:
    """Of some global batches, the same on every rank."""

    total: float  # nats
    predicted: int
    others: dict[str, float]  # EvalRecord's of masked text

    @property
    def loss(self) -> float:
        """Nats per predicted token."""
        return self.total / self.predicted


def held_out_loss(
    engine: Engine,
    data: Data,
    objective: TextObjective,
    shape: BatchShape,
    step: int,
    tokens: int,
    limit: int,
    show: Show = show_nothing,
) -> EvalRecord:
    """Loss per predicted token over the first `limit` global batches of held-out text (0: all), the same on every
    layout. `objective` is the one for held-out text.
    """
    assert data.held_out is not None, "the caller checks that there is a validation split"
    batches = data.held_out.batches(shape, limit)
    found = _measure(engine, objective, batches, data.held_out.rows, shape, show)
    text_bytes = _text_bytes(engine, data, batches) if isinstance(objective, Causal) else None
    return EvalRecord(
        step=step,
        tokens=tokens,
        loss=found.loss,
        perplexity=math.exp(min(found.loss, 700.0)),
        bits_per_byte=None if text_bytes is None else found.total / max(1, text_bytes) / math.log(2),
        masked_accuracy=found.others.get("masked_accuracy"),
        pair_loss=found.others.get("pair_loss"),
        pair_accuracy=found.others.get("pair_accuracy"),
    )


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
        found = [_measure(engine, objective, [rows], left, shape) for objective in objectives]
        variance += found[0].predicted ** 2 * float(np.var([one.loss for one in found], ddof=1))
        predicted, left = predicted + found[0].predicted, left - shape.global_batch
    share = (data.held_out.rows - max(0, left)) / data.held_out.rows
    return math.sqrt(variance * share) / predicted


def _measure(
    engine: Engine,
    objective: TextObjective,
    batches: Sequence[Sequence[Any]],
    left: int,
    shape: BatchShape,
    show: Show = show_nothing,
) -> _Measured:
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
        return _Measured(total, predicted, {})
    sums = _sums(engine.groups.gather(dict(here)))
    total = sums.pop("loss")
    means = {name: value / (real_rows if name in OF_PAIRS else predicted) for name, value in sums.items()}
    return _Measured(total, predicted, means)


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


def _text_bytes(engine: Engine, data: Data, batches: Sequence[Sequence[Rows]]) -> int:
    """Of the text that all ranks predict, every token of it once."""
    counts_here = engine.groups.tensor_rank == 0 and engine.groups.is_first_stage  # each row once
    bytes_per_token = data.tokenizer.token_bytes()
    found = sum(int(bytes_per_token[part.tokens_BT[part.row_B >= 0, 1:]].sum()) for rows in batches for part in rows)
    counted = torch.tensor([found if counts_here else 0])
    dist.all_reduce(counted, group=engine.groups.control_group)
    return int(counted)
