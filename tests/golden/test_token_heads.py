"""Spans and tags beside transformers' heads: scores, loss and every gradient, with a question that has no answer, words
of several pieces, and rows of unequal length. transformers' softmax over the tokens of a row also counts what fills it
up, so spans are compared row by row.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from tests.golden.test_families import check_gradients
from tests.helpers.theirs import Pair, Rows, pair, rows

IGNORED = -100  # in transformers' labels
SPANS = ((5, 9), (0, 0), (12, 12))  # the second question has no answer
STEMS = {"Bert": "bert_base", "Roberta": "roberta_base"}


def alone(batch: Rows, row: int) -> Rows:
    """One row without anything that fills it up."""
    length = int(batch.length_B[row])
    return Rows(batch.tokens_BS[row : row + 1, :length], *(x[row : row + 1] for x in (batch.length_B, batch.second_B)))


def no_text(batch: Rows) -> tuple[Tensor, Tensor]:
    """Labels of no language model."""
    tokens_SB, _ = batch.ours()
    return tokens_SB, torch.zeros(tokens_SB.shape)


def assert_alike(both: Pair, batch: Rows, targets_SBO: Tensor, **labels: Tensor) -> None:
    wanted = both.theirs(**batch.theirs(segments=both.family.model_type == "bert"), **labels).loss
    found = both.ours(*batch.ours(), *no_text(batch), batch.length_B, targets_SBO)
    assert abs(found.item() - wanted.item()) <= 1e-5 * max(1.0, wanted.item())
    wanted.backward()
    found.backward()


@pytest.mark.parametrize("stem", STEMS)
def test_spans_are_theirs(stem: str) -> None:
    head = HeadSpec(2, 1, lm_coefficient=0.0, kind="span")
    both, batch = pair(f"{stem}ForQuestionAnswering", STEMS[stem], head), rows()
    for row, (first, last) in enumerate(SPANS):
        one = alone(batch, row)
        targets_S12 = torch.zeros(int(one.length_B), 1, 2)
        targets_S12[first, 0, 0] = targets_S12[last, 0, 1] = 0.5
        assert_alike(both, one, targets_S12, start_positions=torch.tensor([first]), end_positions=torch.tensor([last]))
    # a softmax over positions does not change where all of them get the same
    check_gradients(both, zero=("head.bias", "blocks.1.mlp_norm.bias"))
    with torch.no_grad():
        output = both.theirs(**batch.theirs(segments=stem == "Bert"))
        wanted_BS2 = torch.stack([output.start_logits, output.end_logits], -1)
        found_BS2 = both.ours.token_scores(*batch.ours())
    torch.testing.assert_close(found_BS2[batch.is_real], wanted_BS2[batch.is_real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("stem", STEMS)
def test_tags_are_theirs(stem: str) -> None:
    head = HeadSpec(5, 1, lm_coefficient=0.0, kind="tags")
    both, batch = pair(f"{stem}ForTokenClassification", STEMS[stem], head), rows()
    tags_BS = torch.where(batch.is_real & (batch.tokens_BS % 3 > 0), batch.tokens_BS % 5, IGNORED)
    counted_BS = tags_BS != IGNORED
    targets_BSO = torch.eye(5)[tags_BS.clamp(min=0)] * counted_BS[..., None] / counted_BS.sum()
    assert_alike(both, batch, targets_BSO.transpose(0, 1).contiguous(), labels=tags_BS)
    check_gradients(both)
    with torch.no_grad():
        wanted_BSO = both.theirs(**batch.theirs(segments=stem == "Bert")).logits
        found_BSO = both.ours.token_scores(*batch.ours())
    torch.testing.assert_close(found_BSO[batch.is_real], wanted_BSO[batch.is_real], rtol=0, atol=1e-5)
