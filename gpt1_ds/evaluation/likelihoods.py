"""How likely a model finds targets after their sources: one decoder's answers, or one stack's continuations.

Shapes: B rows, S positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.engine.base import MicroBatch
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.losses import TextLoss
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.source_target import Texts

BATCH_TOKENS = 8192  # positions of one forward pass, padding included
Tokens = NDArray[np.integer]


@torch.no_grad()
def row_scores(model: DenseModel, batch: HostBatch) -> NDArray[np.float32]:
    """float32 [B, 2]: of each row the log-likelihood of the tokens that its labels count (nats), and 1 where the model
    writes them by itself, taking the likeliest each time.
    """
    device = next(model.parameters()).device
    micro_batch = MicroBatch.of(batch, np.zeros(batch.inputs[0].shape[1], dtype=np.int64))
    inputs, labels = (tuple(part.to(device) for part in parts) for parts in (micro_batch.inputs, micro_batch.labels))
    output = model.output
    loss = TextLoss(output.vocab_size, output.tensor)
    *ids, facts_B3 = inputs
    loss(output.project(model.states(*ids, facts_B3=facts_B3)), labels)
    found: NDArray[np.float32] = loss.scores[0].cpu().numpy()
    return found


def target_log_likelihoods(
    model: DenseModel,
    pairs: Sequence[tuple[Tokens, Tokens]],
    pad: int,
    given: int = 0,
    batch_tokens: int = BATCH_TOKENS,
) -> NDArray[np.float64]:
    """float64 [len(pairs), 2]: of each (source, target) the log-likelihood (nats) of the target's tokens but the first
    `given` ones, which a decoder is told, and 1 where each is the likeliest. A source has a token at least. Neighbours
    share a batch: sort by length.
    """
    scores = np.zeros((len(pairs), 2))
    for batch in neighbours([len(source) + len(target) for source, target in pairs], batch_tokens):
        texts = Texts(*_padded([pairs[n][0] for n in batch], pad), *_padded([pairs[n][1] for n in batch], pad))
        most = int((texts.source_B + texts.target_B).max()) - 1
        stacks = (texts.source_BS.shape[1], texts.target_BT.shape[1]) if model.stacks == 2 else (most,)
        host = texts.host_batch(stacks, pad, np.ones(len(batch)))
        _, weights = host.labels
        weights[:given] = 0
        scores[batch] = row_scores(model, host)
    return scores


def neighbours(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Numbers of neighbours whose count times the longest is at most `tokens`; a longer one is alone."""
    batch: list[int] = []
    longest = 0
    for number, length in enumerate(lengths):
        if batch and max(longest, length) * (len(batch) + 1) > tokens:
            yield batch
            batch, longest = [], 0
        batch.append(number)
        longest = max(longest, length)
    if batch:
        yield batch


def _padded(rows: Sequence[Tokens], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([B, longest], lengths [B])"""
    lengths_B = np.array([len(row) for row in rows], dtype=np.int64)
    padded_BS = np.full((len(rows), max(1, int(lengths_B.max()))), pad, dtype=np.int64)
    for row, padded_S in zip(rows, padded_BS, strict=True):
        padded_S[: len(row)] = row
    return padded_BS, lengths_B
