"""Rows of sources and answers: what each stack reads, what the loss counts, and that shapes depend on lengths alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpt1_ds.objectives.source_target import TextToText

ANSWERS = [np.array([11, 12, 1]), np.array([13, 1])]
SOURCES, LENGTHS = np.array([[5, 6, 7, 1], [8, 1, 0, 0]]), np.array([4, 2])


def texts(stacks: int, limit: int = 32, multiple: int = 4) -> TextToText:
    return TextToText.of(stacks, ANSWERS, pad=0, limit=limit, multiple=multiple)


def test_a_decoder_reads_its_answer_shifted_right() -> None:
    batch = texts(2).batch(SOURCES, LENGTHS, np.array([0, 1]), np.array([0.25, 0.5]))
    source_SB, shifted_TB = batch.inputs
    target_TB, weights_TB = batch.labels
    assert source_SB.T.tolist() == SOURCES.tolist()
    assert target_TB.T.tolist() == [[11, 12, 1, 0], [13, 1, 0, 0]]
    assert shifted_TB.T.tolist() == [[0, 11, 12, 1], [0, 13, 1, 0]]
    assert weights_TB.T.tolist() == [[0.25, 0.25, 0.25, 0], [0.5, 0.5, 0, 0]]
    assert batch.spans is not None
    assert batch.spans[0].tolist() == [4, 2]


def test_a_single_stack_predicts_the_answer_alone() -> None:
    batch = texts(1).batch(SOURCES, LENGTHS, np.array([0, 1]), np.array([0.25, 0.5]))
    (tokens_SB,), (labels_SB, weights_SB) = batch.inputs, batch.labels
    assert tokens_SB.T.tolist() == [[5, 6, 7, 1, 11, 12, 1, 0], [8, 1, 13, 1, 0, 0, 0, 0]]
    assert [labels_SB[:, row][weights_SB[:, row] > 0].tolist() for row in (0, 1)] == [[11, 12, 1], [13, 1]]
    assert weights_SB.sum() == pytest.approx(3 * 0.25 + 2 * 0.5)


def test_shapes_are_multiples_within_the_limit() -> None:
    assert texts(2).positions(5) == (8, 4)
    assert texts(1).positions(5) == (8,)
    assert texts(1).positions(7) == (12,)
    assert texts(1, limit=10, multiple=4).positions(8) == (10,), "of a model with so many positions"
    assert texts(2, multiple=6).positions(7) == (12, 6)
