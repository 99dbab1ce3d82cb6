"""How much attention and the loss hold at once: read by the kernels of model/ and by the planner."""

from __future__ import annotations

import math

ATTENTION_ROWS = 128  # query rows of a block of attention
ATTENTION_SCORES = {"cpu": 1 << 19, "cuda": 1 << 26}  # scores of a block
LOSS_LOGITS = {"cpu": 1 << 18, "cuda": 1 << 26}  # fp32 logits of a block of the loss
CHUNK_BYTES = {"cpu": 96 << 20, "cuda": 1 << 30}  # about the most that the logits of a chunk of tokens may take
TILE = 128  # tokens, of which matrix products like whole multiples


def chunk_tokens(tokens: int, row_bytes: int, device: str) -> int:
    """Returns the number of tokens whose logits the loss holds at once, of all that a micro-batch has: chunks of about
    equal length, in whole tiles of a matrix product.
    """
    chunks = math.ceil(tokens / max(1, CHUNK_BYTES[device] // row_bytes))
    length = math.ceil(tokens / chunks)
    return min(tokens, math.ceil(length / TILE) * TILE) if length > TILE else length
