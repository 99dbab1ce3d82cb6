"""Log-probabilities in padded batches against a model restated in float64, and pseudo-log-likelihoods against
transformers, one sequence at a time and unpadded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import load
from gpt1_ds.evaluation import probes
from gpt1_ds.evaluation.probes import log_probabilities, pseudo_log_likelihoods
from gpt1_ds.evaluation.text_scores import neighbours
from gpt1_ds.model.build import DenseModel
from tests.helpers.foreign import SMALL, random_weights
from tests.helpers.reference import Reference
from tests.helpers.theirs import VOCABULARY as THEIR_VOCABULARY
from tests.helpers.theirs import Pair, pair

VOCABULARY = 300  # 384 rows with padding
WEIGHTS = random_weights(SMALL, VOCABULARY)


@pytest.fixture(scope="module")
def model() -> DenseModel:
    config = replace(load(), model=replace(SMALL, vocab_size=VOCABULARY))
    return whole_model(config, lambda info: WEIGHTS[info.name])


def drawn(count: int = 40) -> tuple[list[np.ndarray], list[int]]:
    numbers = np.random.default_rng(1)
    lengths = numbers.integers(2, SMALL.context + 2, count)
    sequences = [numbers.integers(0, VOCABULARY, length, dtype=np.int32) for length in lengths]
    scored = [int(numbers.integers(0, length)) for length in lengths]
    scored[0], scored[1] = 0, len(sequences[1]) - 1
    return sequences, scored


def one_by_one(sequences: list[np.ndarray], scored: list[int]) -> np.ndarray:
    reference = Reference({name: weight.double() for name, weight in WEIGHTS.items()}, SMALL.heads)
    sums = []
    for sequence, count in zip(sequences, scored, strict=True):
        tokens = torch.from_numpy(sequence.astype(np.int64))
        chances = torch.log_softmax(reference.logits(tokens[None, :-1])[0], dim=-1)
        sums.append(sum(float(chances[at - 1, tokens[at]]) for at in range(len(tokens) - count, len(tokens))))
    return np.array(sums)


@pytest.mark.parametrize(("batch", "head"), [(1, 512), (100, 7), (8192, 512)])
def test_any_batch_gives_what_one_sequence_alone_gives(
    model: DenseModel, batch: int, head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "HEAD_TOKENS", head)
    sequences, scored = drawn()
    wanted = one_by_one(sequences, scored)
    found = log_probabilities(model, sequences, scored, batch)[:, 0]
    assert found[0] == 0, "nothing scored"
    counts = np.maximum(scored, 1)
    assert np.abs(found / counts - wanted / counts).max() < 2e-5
    assert wanted.min() < -100


def test_no_sequence_and_no_token(model: DenseModel) -> None:
    assert log_probabilities(model, [], []).shape == (0, 2)
    assert log_probabilities(model, [np.array([1], dtype=np.int32)] * 2, [0, 0]).tolist() == [[0, 1]] * 2


MASK = 3


@pytest.fixture(scope="module", params=[("BertForMaskedLM", "bert_base"), ("RobertaForMaskedLM", "roberta_base")])
def both(request: pytest.FixtureRequest) -> Pair:
    return pair(*request.param)


def masked_one_by_one(theirs: Any, sequences: list[np.ndarray], scored: list[int], after: int) -> np.ndarray:
    """A row without padding for each token."""
    sums = np.zeros(len(sequences))
    for number, (sequence, count) in enumerate(zip(sequences, scored, strict=True)):
        for at in range(len(sequence) - after - count, len(sequence) - after):
            tokens = torch.from_numpy(sequence.astype(np.int64))[None]
            tokens[0, at] = MASK
            with torch.no_grad():
                chances = theirs(input_ids=tokens).logits[0, at].double().log_softmax(-1)
            sums[number] += float(chances[sequence[at]])
    return sums


def test_masked_models_are_scored_as_by_transformers(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "HEAD_TOKENS", 7)
    numbers = np.random.default_rng(2)
    lengths = [3, 12, 7, 7, 20]
    sequences = [numbers.integers(5, THEIR_VOCABULARY, length, dtype=np.int32) for length in lengths]
    scored = [0, 11, 3, 6, 4]
    wanted = masked_one_by_one(both.theirs, sequences, scored, after=1)
    assert wanted[1] < -50
    for batch in (1, 50, 8192):  # tokens: one row, a few, and all in one batch, padded to the longest
        found = pseudo_log_likelihoods(both.ours, sequences, scored, MASK, 1, batch)[:, 0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert found[0] == 0, "nothing scored"


def test_nothing_but_masked_positions_meets_the_vocabulary(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    logits_of = both.ours.logits_of
    monkeypatch.setattr(
        both.ours, "logits_of", lambda states: (seen.append(states.shape[:2].numel()), logits_of(states))[1]
    )
    pseudo_log_likelihoods(both.ours, [np.arange(9, 19, dtype=np.int32)] * 2, [4, 0], MASK, 1)
    assert seen == [4]
    assert pseudo_log_likelihoods(both.ours, [], [], MASK, 1).shape == (0, 2)


def test_batches_hold_neighbours_within_the_bound() -> None:
    assert list(neighbours([3, 3, 4, 9, 50, 2], 12)) == [[0, 1, 2], [3], [4], [5]]
    assert list(neighbours([2, 2, 2, 4], 12)) == [[0, 1, 2], [3]]
