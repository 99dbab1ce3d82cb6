"""Zero-shot probes of a checkpoint, whatever layout wrote it; each rank holds the whole model and takes its share.

Shapes: S positions, B rows, D width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.likelihoods import BATCH_TOKENS, neighbours, target_log_likelihoods
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.tasks import zeroshot
from gpt1_ds.tasks.frame import Frame, causal_frame, masked_frame, sentinel_frame
from gpt1_ds.tasks.zeroshot import Float64s, Probe

HEAD_TOKENS = 512  # scored tokens whose logits are there at once: 83 MB in fp32 with 40,478 ids


def probe_metrics(probe: Probe, loaded: Loaded, groups: ProcessGroups) -> dict[str, float]:
    """The scores of one probe (see zeroshot.score), the same on every rank."""
    frame = frame_of(loaded)
    asked, fitted = (
        zeroshot.probe_questions(probe, part, loaded.tokenizer, frame) for part in (probe.examples, probe.train)
    )
    sequences = [sequence for question in (*asked, *fitted) for sequence in question.sequences]
    scored = [count for question in (*asked, *fitted) for count in question.scored]
    by_length = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    mine = by_length[groups.rank :: groups.world]
    ours, counts = [sequences[n] for n in mine], [scored[n] for n in mine]
    here = log_likelihoods(loaded, frame, ours, counts)
    sums = np.zeros(len(sequences))
    for rank, values in enumerate(groups.gather(here)):
        sums[by_length[rank :: groups.world]] = values
    if not np.isfinite(sums).all():
        raise CheckpointError(f"{loaded.folder}: its probabilities are not finite; use a checkpoint from before that")
    return zeroshot.score(probe, asked, sums, fitted)


def frame_of(loaded: Loaded) -> Frame:
    """What the model has seen around texts. Imported ones know rows, whatever a run's configuration would say. Raises
    ConfigError for a masked model whose tokenizer has no mask, and for an encoder-decoder's without sentinels.
    """
    model, imported = loaded.config.model, loaded.step == 0
    if model.kind == "encoder_decoder":
        return sentinel_frame(loaded.tokenizer, model.context)
    if model.mask != "bidirectional":
        return causal_frame(loaded.tokenizer, model.context)
    return masked_frame(loaded.tokenizer, model.context, imported or loaded.config.data.text != "windows")


def log_likelihoods(
    loaded: Loaded, frame: Frame, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int]
) -> Float64s:
    """float64 [len(sequences)], nats: of each sequence in `frame` the sum over its last `scored` tokens, as the model's
    family gives it. Neighbours share a batch: sort by length.
    """
    if frame.mask is not None:
        return pseudo_log_likelihoods(loaded.model, sequences, scored, frame.mask, len(frame.last))
    if frame.sentinel is not None or loaded.config.model.mask == "prefix":
        return _of_targets(loaded, sequences, scored, frame)
    return log_probabilities(loaded.model, sequences, scored)


def _of_targets(
    loaded: Loaded, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int], frame: Frame
) -> Float64s:
    """As log_probabilities, of a model whose tokens see all of their source."""
    pairs = []
    for sequence, count in zip(sequences, scored, strict=True):
        source, target = np.split(sequence, [len(sequence) - count])
        if frame.sentinel is not None:
            source = np.concatenate([source, [frame.sentinel, loaded.tokenizer.eod_id]])
            target = np.concatenate([[frame.sentinel], target])
        pairs.append((source, target))
    given = 0 if frame.sentinel is None else 1
    return target_log_likelihoods(loaded.model, pairs, loaded.tokenizer.pad_id, given)


@torch.no_grad()
def log_probabilities(
    model: DenseModel, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int], batch_tokens: int = BATCH_TOKENS
) -> Float64s:
    """float64 [len(sequences)], nats: of each sequence the sum over its last `scored` tokens, each given all before it.

    Sequences are padded on the right, which causal attention does not see. Neighbours share a batch: sort by length.
    """
    sums = np.zeros(len(sequences))
    device = next(model.parameters()).device
    for batch in neighbours([len(sequence) - 1 for sequence in sequences], batch_tokens):
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


@torch.no_grad()
def pseudo_log_likelihoods(
    model: DenseModel,
    sequences: Sequence[NDArray[np.int32]],
    scored: Sequence[int],
    mask: int,
    after: int,
    batch_tokens: int = BATCH_TOKENS,
) -> Float64s:
    """float64 [len(sequences)], nats (Salazar et al. 2020, equation 1): of each sequence the sum over the `scored`
    tokens before the last `after` ones, each given all others, when `mask` stands in its place.

    A sequence is a row of one segment for every token that is scored; rows see no padding.
    """
    sums, device = np.zeros(len(sequences)), next(model.parameters()).device
    counts, sizes = np.array(scored, dtype=np.int64), np.array([len(one) for one in sequences], dtype=np.int64)
    number_R = np.repeat(np.arange(len(sequences)), counts)  # R rows: which sequence each is, and which token it masks
    at_R = np.repeat(sizes - after - np.cumsum(counts), counts) + np.arange(len(number_R))
    for batch in neighbours(sizes[number_R].tolist(), batch_tokens):
        number_B, at_B, column_B = number_R[batch], at_R[batch], np.arange(len(batch))
        tokens_SB = np.zeros((sizes[number_B].max(), len(batch)), dtype=np.int64)
        for column, number in enumerate(number_B):
            tokens_SB[: sizes[number], column] = sequences[number]
        targets_B, tokens_SB[at_B, column_B] = tokens_SB[at_B, column_B], mask
        facts_B3 = row_facts(np.zeros_like(number_B), (sizes[number_B], sizes[number_B]))
        states_SBD, _ = model.hidden(torch.from_numpy(tokens_SB).to(device), torch.from_numpy(facts_B3).to(device))
        masked_BD = states_SBD[torch.from_numpy(at_B).to(device), torch.from_numpy(column_B).to(device)]
        sums += np.bincount(number_B, _token_log_probabilities(model, masked_BD, targets_B), len(sums))
    return sums


def _token_log_probabilities(model: DenseModel, states_ND: Tensor, targets: NDArray[np.int64]) -> Float64s:
    """float64 [N]: log p(target) from the state that predicts it, in slices: few logits are there at once."""
    targets_N = torch.from_numpy(targets).to(states_ND.device)
    found = [torch.zeros(0)]
    for part_ND, target_N in zip(states_ND.split(HEAD_TOKENS), targets_N.split(HEAD_TOKENS), strict=True):
        logits_NV = model.logits_of(part_ND.unsqueeze(1))[:, 0]
        found.append(logits_NV.float().log_softmax(-1).gather(1, target_N.unsqueeze(1))[:, 0].cpu())
    return torch.cat(found).double().numpy()
