"""Zero-shot probes of a checkpoint, whatever layout wrote it; each rank holds the whole model and takes its share.

Shapes: S positions, B rows, D width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.model.build import DenseModel
from gpt1_ds.tasks import zeroshot
from gpt1_ds.tasks.zeroshot import Float64s, Probe

BATCH_TOKENS = 8192  # positions of one forward pass, padding included
HEAD_TOKENS = 512  # scored tokens whose logits are there at once: 83 MB in fp32 with 40,478 ids


def probe_metrics(probe: Probe, loaded: Loaded, groups: ProcessGroups) -> dict[str, float]:
    """The scores of one probe (see zeroshot.score), the same on every rank."""
    context = loaded.config.model.context
    asked, fitted = (
        zeroshot.questions(probe.name, part, loaded.tokenizer, context) for part in (probe.examples, probe.train)
    )
    sequences = [sequence for question in (*asked, *fitted) for sequence in question.sequences]
    scored = [count for question in (*asked, *fitted) for count in question.scored]
    by_length = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    mine = by_length[groups.rank :: groups.world]
    here = log_probabilities(loaded.model, [sequences[n] for n in mine], [scored[n] for n in mine])
    sums = np.zeros(len(sequences))
    for rank, values in enumerate(groups.gather(here)):
        sums[by_length[rank :: groups.world]] = values
    if not np.isfinite(sums).all():
        raise CheckpointError(f"{loaded.folder}: its probabilities are not finite; use a checkpoint from before that")
    return zeroshot.score(probe, asked, sums, fitted)


@torch.no_grad()
def log_probabilities(
    model: DenseModel, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int], batch_tokens: int = BATCH_TOKENS
) -> Float64s:
    """float64 [len(sequences)], nats: of each sequence the sum over its last `scored` tokens, each given all before it.

    Sequences are padded on the right, which causal attention does not see. Neighbours share a batch: sort by length.
    """
    sums = np.zeros(len(sequences))
    device = next(model.parameters()).device
    for batch in _batches([len(sequence) - 1 for sequence in sequences], batch_tokens):
        longest = max(1, *(len(sequences[number]) - 1 for number in batch))
        tokens_SB = np.zeros((longest, len(batch)), dtype=np.int64)
        positions, columns, targets = [], [], []
        for column, number in enumerate(batch):
            sequence, count = sequences[number], scored[number]
            tokens_SB[: len(sequence) - 1, column] = sequence[:-1]
            positions.append(np.arange(len(sequence) - 1 - count, len(sequence) - 1))
            columns.append(np.full(count, column))
            targets.append(sequence[len(sequence) - count :].astype(np.int64))
        states_SBD, _ = model.hidden(torch.from_numpy(tokens_SB).to(device))
        at = (torch.from_numpy(np.concatenate(part)).to(device) for part in (positions, columns))
        found = _token_log_probabilities(model, states_SBD[tuple(at)], np.concatenate(targets))
        sums[batch] = np.bincount(np.concatenate(columns), found, len(batch))
    return sums


def _token_log_probabilities(model: DenseModel, states_ND: Tensor, targets: NDArray[np.int64]) -> Float64s:
    """float64 [N]: log p(target) from the state before it, in slices, so that few logits are there at once."""
    targets_N = torch.from_numpy(targets).to(states_ND.device)
    found = [torch.zeros(0)]
    for part_ND, target_N in zip(states_ND.split(HEAD_TOKENS), targets_N.split(HEAD_TOKENS), strict=True):
        logits_NV = model.tokens.logits(part_ND.unsqueeze(1))[:, 0]
        found.append(logits_NV.float().log_softmax(-1).gather(1, target_N.unsqueeze(1))[:, 0].cpu())
    return torch.cat(found).double().numpy()


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
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
