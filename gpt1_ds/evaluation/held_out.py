"""Loss on text that was held out from training."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from gpt1_ds.common.progress import Show, show_nothing
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import Data
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import evaluation_batches
from gpt1_ds.tracking.record import EvalRecord


def held_out_loss(
    engine: Engine, data: Data, shape: BatchShape, step: int, tokens: int, limit: int, show: Show = show_nothing
) -> EvalRecord:
    """Loss over the first `limit` global batches of held-out windows (0: all), the same on every layout."""
    assert data.held_out is not None, "the caller checks that there is a validation split"
    total, text_bytes, context = 0.0, 0, data.held_out.context
    batches = data.held_out.batches(shape, limit)
    bytes_per_token = data.tokenizer.token_bytes()
    for done, rows in enumerate(batches):
        show(done, total=len(batches))
        total += engine.evaluate(evaluation_batches(rows)) * shape.global_batch * context
        text_bytes += sum(int(bytes_per_token[part.tokens_BT[part.row_B >= 0, 1:]].sum()) for part in rows)
    counts_here = engine.groups.tensor_rank == 0 and engine.groups.is_first_stage  # each row once
    counted = torch.tensor([text_bytes if counts_here else 0])
    dist.all_reduce(counted, group=engine.groups.control_group)
    windows = min(len(batches) * shape.global_batch, data.held_out.order.windows)
    loss = total / (windows * context)
    return EvalRecord(
        step=step,
        tokens=tokens,
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=total / max(1, int(counted)) / math.log(2),
    )
