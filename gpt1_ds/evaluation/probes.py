"""Zero-shot probes of a checkpoint, whatever layout wrote it. Each rank holds the whole model and scores its part of
the questions.

Shapes: S positions, B rows, D width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.engine.agreement import digest
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.text_scores import BATCH_TOKENS, neighbours, target_log_likelihoods
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.tasks.probe_scores import Float64s, above_control, score_probe, with_control
from gpt1_ds.tasks.questions import (
    Frame,
    Question,
    causal_frame,
    masked_frame,
    probe_questions,
    sentinel_frame,
    tokens_alone,
)
from gpt1_ds.tasks.zeroshot import Probe

SHOWN = 2048  # sequences after which a bar moves
HEAD_TOKENS = 512  # scored tokens whose logits are there at once: 83 MB in fp32 with 40,478 ids


def probe_metrics(probe: Probe, loaded: Loaded, groups: ProcessGroups, show: Show = show_nothing) -> dict[str, float]:
    """Returns the scores of one probe and of its control (see probe_scores.score_probe), the same on every rank."""
    frame = frame_of(loaded)
    asked, fitted = (probe_questions(probe, part, loaded.tokenizer, frame) for part in (probe.examples, probe.train))

    def scores(of: Sequence[Question]) -> Float64s:
        sequences = [sequence for question in of for sequence in question.sequences]
        return shared_scores(loaded, sequences, [n for question in of for n in question.scored], frame, groups, show)

    scores_N2 = scores([*asked, *fitted])
    size = loaded.tokenizer.vocab_size
    found = score_probe(probe, asked, scores_N2[:, 0], fitted, scores_N2[:, 1], size)
    show(words=f"{probe.title}, control")
    if probe.sums_tokens:
        rows, row_N, sequence_N = tokens_alone([*asked, *fitted], frame)
        each = shared_scores(loaded, rows, [1] * len(rows), frame, groups, show)[:, 0]
        sums = np.bincount(sequence_N, each[row_N], len(scores_N2)).astype(np.float64)
        above = above_control(probe, asked, scores_N2[:, 0], asked, sums)
        return with_control(found, score_probe(probe, asked, sums, fitted), above)
    alone = [question.alone(frame) for question in asked]
    alone_N2 = scores(alone)
    above = above_control(probe, asked, scores_N2[:, 0], alone, alone_N2[:, 0])
    return with_control(found, score_probe(probe, alone, alone_N2[:, 0], (), alone_N2[:, 1], size), above)


def shared_scores(
    loaded: Loaded,
    sequences: Sequence[NDArray[np.int32]],
    scored: Sequence[int],
    frame: Frame,
    groups: ProcessGroups,
    show: Show = show_nothing,
) -> Float64s:
    """Returns float64 [len(sequences), 2], the same on every rank: of each sequence in its `frame` the log-probability
    of the `scored` tokens before the frame's last ones (nats), and 1 where each of them is the likeliest. Equal ones
    have equal scores, to the bit. Raises CheckpointError where they are not finite.
    """
    places: dict[tuple[bytes, int], int] = {}
    place_N = [
        places.setdefault((sequence.tobytes(), count), len(places))
        for sequence, count in zip(sequences, scored, strict=True)
    ]
    number_of = dict(zip(reversed(place_N), reversed(range(len(sequences))), strict=True))  # the first that is alike
    groups.compare({"what is scored": digest(part for part, _ in places), "frame": frame})
    numbers = sorted(number_of.values(), key=lambda number: len(sequences[number]))
    mine = numbers[groups.rank :: groups.world]
    here = [np.zeros((0, 2))]
    show(0, total=len(mine))
    for start in range(0, len(mine), SHOWN):
        part = mine[start : start + SHOWN]
        here.append(log_likelihoods(loaded, frame, [sequences[n] for n in part], [scored[n] for n in part]))
        show(start + len(part))
    scores = np.zeros((len(sequences), 2))
    for rank, values in enumerate(groups.gather(np.concatenate(here))):
        scores[numbers[rank :: groups.world]] = values
    scores = scores[[number_of[place] for place in place_N]]
    if not np.isfinite(scores).all():
        raise CheckpointError(f"{loaded.folder}: its probabilities are not finite; use a checkpoint from before that")
    return scores


def frame_of(loaded: Loaded) -> Frame:
    """Returns what the model has seen around texts. Imported ones know rows, whatever a run's configuration would say.
    Raises ConfigError for a masked model whose tokenizer has no mask, and for an encoder-decoder's without sentinels.
    """
    return frame_for(loaded.config, loaded.tokenizer, imported=loaded.step == 0)


def frame_for(config: Config, tokenizer: Tokenizer, imported: bool = False) -> Frame:
    """Returns the frame of a model of this configuration, as `frame_of` does."""
    model, in_rows = config.model, config.data.text != "windows"
    if model.kind == "encoder_decoder":
        return sentinel_frame(tokenizer, model.context)
    if model.mask != "bidirectional":
        return causal_frame(tokenizer, model.context, in_rows and not imported)
    return masked_frame(tokenizer, model.context, in_rows or imported)


def log_likelihoods(
    loaded: Loaded, frame: Frame, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int]
) -> Float64s:
    """Returns float64 [len(sequences), 2]: of each sequence in `frame` the log-probability of its `scored` tokens
    (nats), as the model's family gives it, and 1 where each is the likeliest. Neighbours share a batch: sort by length.
    """
    if frame.mask is not None:
        return pseudo_log_likelihoods(loaded.model, sequences, scored, frame.mask, len(frame.last))
    if frame.sentinel is not None or loaded.config.model.mask == "prefix":
        return _of_targets(loaded, sequences, scored, frame)
    return log_probabilities(loaded.model, sequences, scored)


def _of_targets(
    loaded: Loaded, sequences: Sequence[NDArray[np.int32]], scored: Sequence[int], frame: Frame
) -> Float64s:
    """Returns what log_probabilities does, of a model whose tokens see all of their source."""
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
    """Returns float64 [len(sequences), 2]: of each sequence the log-probability of its last `scored` tokens (nats),
    each given all before it, and 1 where each is the likeliest.

    Sequences are padded on the right, which causal attention does not see. Neighbours share a batch: sort by length.
    """
    scores = np.zeros((len(sequences), 2))
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
        states_SBD = model.hidden(torch.from_numpy(tokens_SB).to(device))
        at = (torch.from_numpy(np.concatenate(part)).to(device) for part in (positions, columns))
        found_N2 = _token_scores(model, states_SBD[tuple(at)], np.concatenate(targets))
        scores[batch] = _sums(np.concatenate(columns), found_N2, len(batch))
    return _with_all_likeliest(scores, scored)


@torch.no_grad()
def pseudo_log_likelihoods(
    model: DenseModel,
    sequences: Sequence[NDArray[np.int32]],
    scored: Sequence[int],
    mask: int,
    after: int,
    batch_tokens: int = BATCH_TOKENS,
) -> Float64s:
    """Returns float64 [len(sequences), 2]: of each sequence the pseudo-log-likelihood (Salazar et al. 2020, equation 1)
    of the `scored` tokens before the last `after` ones (nats), each given all others when `mask` stands in its place,
    and 1 where each is the likeliest.

    A sequence is a row of one segment for every token that is scored; rows see no padding.
    """
    scores, device = np.zeros((len(sequences), 2)), next(model.parameters()).device
    counts, sizes = np.array(scored, dtype=np.int64), np.array([len(one) for one in sequences], dtype=np.int64)
    number_R = np.repeat(np.arange(len(sequences)), counts)  # R rows: which sequence each is, and which token it masks
    at_R = np.repeat(sizes - after - np.cumsum(counts), counts) + np.arange(len(number_R))
    for batch in neighbours(sizes[number_R].tolist(), batch_tokens):
        number_B, at_B, column_B = number_R[batch], at_R[batch], np.arange(len(batch))
        tokens_SB = np.zeros((sizes[number_B].max(), len(batch)), dtype=np.int64)
        for column, number in enumerate(number_B):
            tokens_SB[: sizes[number], column] = sequences[number]
        targets_B, tokens_SB[at_B, column_B] = tokens_SB[at_B, column_B], mask
        facts_BF = row_facts(np.zeros_like(number_B), (sizes[number_B], sizes[number_B]))
        states_SBD = model.hidden(torch.from_numpy(tokens_SB).to(device), torch.from_numpy(facts_BF).to(device))
        masked_BD = states_SBD[torch.from_numpy(at_B).to(device), torch.from_numpy(column_B).to(device)]
        scores += _sums(number_B, _token_scores(model, masked_BD, targets_B), len(scores))
    return _with_all_likeliest(scores, scored)


def _sums(number_N: NDArray[np.int64], values_N2: Float64s, size: int) -> Float64s:
    """Returns [size, 2]: the values of each number, added."""
    return np.stack([np.bincount(number_N, column_N, size) for column_N in values_N2.T], axis=1)


def _with_all_likeliest(scores_N2: Float64s, scored: Sequence[int]) -> Float64s:
    """Returns `scores` with 1 in the second column, which counts likeliest tokens, where all that are scored are
    likeliest.
    """
    scores_N2[:, 1] = scores_N2[:, 1] == np.array(scored, dtype=np.int64)
    return scores_N2


def _token_scores(model: DenseModel, states_ND: Tensor, targets: NDArray[np.int64]) -> Float64s:
    """Returns float64 [N, 2]: log p(target) from the state that predicts it, and 1 where no token is likelier; in
    slices: few logits are there at once.
    """
    targets_N = torch.from_numpy(targets).to(states_ND.device)
    found = [torch.zeros(0, 2, dtype=torch.float64)]
    for part_ND, target_N in zip(states_ND.split(HEAD_TOKENS), targets_N.split(HEAD_TOKENS), strict=True):
        log_NV = model.logits_of(part_ND.unsqueeze(1))[:, 0].float().log_softmax(-1)
        pair = log_NV.gather(1, target_N.unsqueeze(1))[:, 0], log_NV.argmax(-1) == target_N
        found.append(torch.stack([column.double() for column in pair], 1).cpu())
    return torch.cat(found).numpy()
