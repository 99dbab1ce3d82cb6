"""Loss on text that was held out from training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.loader import BatchShape, Rows
from gpt1_ds.data.sources import Data
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import evaluation_batches
from gpt1_ds.evaluation.measures import MaskedMeasures
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.tracking.record import EvalRecord


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
    total, predicted, left = 0.0, 0, data.held_out.rows
    batches, masked = data.held_out.batches(shape, limit), MaskedMeasures(engine, objective, shape)
    for done, rows in enumerate(batches):
        show(done, total=len(batches))
        if objective.predicts_places:
            masked.add(rows, left)
        else:
            all_tokens, real_tokens = objective.counts(rows[0], min(left, shape.global_batch), shape.global_batch)
            total += engine.evaluate(evaluation_batches(objective, rows)) * all_tokens
            predicted += real_tokens
        left -= shape.global_batch
    text_bytes = _text_bytes(engine, data, batches) if objective.predicts_all else None
    found = {"loss": total / predicted} if predicted else masked.means()
    return EvalRecord(
        step=step,
        tokens=tokens,
        perplexity=math.exp(min(found["loss"], 700.0)),
        bits_per_byte=None if text_bytes is None else total / max(1, text_bytes) / math.log(2),
        **found,
    )


def _text_bytes(engine: Engine, data: Data, batches: Sequence[Sequence[Rows]]) -> int:
    """Returns the bytes of the text that all ranks predict, every token of it once."""
    counts_here = engine.groups.tensor_rank == 0 and engine.groups.is_first_stage  # each row once
    bytes_per_token = data.tokenizer.token_bytes()
    found = sum(int(bytes_per_token[part.tokens_BT[part.row_B >= 0, 1:]].sum()) for rows in batches for part in rows)
    counted = torch.tensor([found if counts_here else 0])
    dist.all_reduce(counted, group=engine.groups.control_group)
    return int(counted)
