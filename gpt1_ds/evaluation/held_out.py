"""Loss on text that was held out from training."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.loader import BatchShape
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
    """Returns the loss per predicted token over the first `limit` global batches of held-out text (0: all), the same on
    every layout. `objective` is the one for held-out text.
    """
    assert data.held_out is not None, "the caller checks that there is a validation split"
    total, predicted, left, text_bytes = 0.0, 0, data.held_out.rows, 0
    bytes_per_token = data.tokenizer.token_bytes() if objective.predicts_all else None
    masked = MaskedMeasures(engine, objective, shape)
    for done, rows in enumerate(data.held_out.batches(shape, limit)):
        show(done, total=data.held_out.count(shape, limit))
        if objective.predicts_places:
            masked.add(rows, left)
        else:
            all_tokens, real_tokens = objective.counts(rows[0], min(left, shape.global_batch), shape.global_batch)
            total += engine.evaluate(evaluation_batches(objective, rows)) * all_tokens
            predicted += real_tokens
        if bytes_per_token is not None:
            text_bytes += sum(int(bytes_per_token[part.tokens_BT[part.row_B >= 0, 1:]].sum()) for part in rows)
        left -= shape.global_batch
    found = {"loss": total / predicted} if predicted else masked.means()
    return EvalRecord(
        step=step,
        tokens=tokens,
        perplexity=math.exp(min(found["loss"], 700.0)),
        bits_per_byte=None if bytes_per_token is None else total / max(1, _summed(engine, text_bytes)) / math.log(2),
        **found,
    )


def _summed(engine: Engine, text_bytes: int) -> int:
    """Returns the bytes of the text that all ranks predict, every token of it once."""
    counts_here = engine.groups.tensor_rank == 0 and engine.groups.is_first_stage  # each row once
    counted = torch.tensor([text_bytes if counts_here else 0])
    dist.all_reduce(counted, group=engine.groups.control_group)
    return int(counted)
