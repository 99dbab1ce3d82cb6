"""A prefix is cut at a random place that depends on the sequence's number alone; its rest is predicted."""

from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.config import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.loader import Rows
from gpt1_ds.objectives.causal import Prefix

CONTEXT = 16
ONE = ModelConfig(context=CONTEXT, mask="prefix")
TWO = ModelConfig(context=CONTEXT, kind="encoder_decoder", norm="pre")


def prefix(model: ModelConfig) -> Prefix:
    return Prefix(ObjectiveConfig(kind="prefix"), model, pad=0, key=5)


def rows(row_B: np.ndarray, global_batch: int) -> Rows:
    tokens_GT = 1 + np.arange(global_batch * (CONTEXT + 1)).reshape(global_batch, -1)
    return Rows(tokens_GT[row_B], row_B, np.arange(global_batch))


def test_cuts_are_uniform() -> None:
    cut_B = prefix(ONE).cuts(np.arange(100_000))
    found = np.bincount(cut_B, minlength=CONTEXT + 1) / len(cut_B)
    assert found[0] == 0
    assert np.abs(found[1:] - 1 / CONTEXT).max() < 0.004


def test_a_single_stack_predicts_what_follows_its_prefix() -> None:
    objective = prefix(ONE)
    batch = objective.batch(rows(np.arange(6), 6))
    (tokens_SB,), (labels_SB, weights_SB) = batch.inputs, batch.labels
    assert batch.spans is not None
    until_B, _ = batch.spans
    assert np.array_equal(tokens_SB[1:], labels_SB[:-1])
    for row, until in enumerate(until_B):
        counted = np.flatnonzero(weights_SB[:, row])
        assert np.array_equal(counted, np.arange(until - 1, CONTEXT)), "a token that is seen is not predicted"
    predicted, _ = objective.counts(rows(np.arange(6), 6), 6, 6)
    assert (weights_SB > 0).sum() == predicted
    assert weights_SB.sum() == pytest.approx(1, abs=1e-6)


def test_two_stacks_share_the_text() -> None:
    batch = prefix(TWO).batch(rows(np.arange(6), 6))
    source_SB, shifted_TB = batch.inputs
    target_TB, weights_TB = batch.labels
    assert batch.spans is not None
    for row, cut in enumerate(batch.spans[0]):
        whole = 1 + row * (CONTEXT + 1) + np.arange(CONTEXT + 1)
        assert np.array_equal(source_SB[:cut, row], whole[:cut])
        assert not source_SB[cut:, row].any()
        assert np.array_equal(target_TB[: CONTEXT + 1 - cut, row], whole[cut:])
        assert (weights_TB[:, row] > 0).sum() == CONTEXT + 1 - cut
    assert (shifted_TB[0] == 0).all()
    assert np.array_equal(shifted_TB[1:], target_TB[:-1])


@pytest.mark.parametrize("model", [ONE, TWO], ids=["one stack", "two stacks"])
def test_a_row_depends_on_its_number_alone(model: ModelConfig) -> None:
    objective = prefix(model)
    whole = objective.batch(rows(np.arange(8), 8))
    part = objective.batch(rows(np.arange(4, 8), 8))
    for one, all_rows in zip((*part.inputs, part.labels[0]), (*whole.inputs, whole.labels[0]), strict=True):
        assert np.array_equal(one, all_rows[:, 4:])
    assert np.allclose(part.labels[1], 2 * whole.labels[1][:, 4:])
