"""A causal model of rows of sentences predicts every token of its rows but the first symbol, and no padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.config import load
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import open_data
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.tasks.questions import causal_frame

TEXTS = ("pairs", "sentence_pairs", "full_sentences", "document_sentences")


@pytest.mark.parametrize("text", TEXTS)
def test_every_token_weighs_the_same_in_the_global_batch(text: str, sentence_data: Path) -> None:
    config = load([], ["model.context=32", f"data.path={sentence_data}", f"data.text={text}"])
    masked = load([], ["model.context=32", f"data.path={sentence_data}", f"data.text={text}", "objective.kind=masked",
                       "model.mask=bidirectional"])  # fmt: skip
    data, same = open_data(config), open_data(masked)
    objective = pretraining_objective(config, data.tokenizer, data.data_hash, 1)
    batch, rows_of_masked = (one.training.batch(3, BatchShape(8, 4)) for one in (data, same))
    assert batch.fingerprint == rows_of_masked.fingerprint, "masked and causal models read the same rows"
    counted = 0.0
    for rows in batch.micro_batches:
        host = objective.batch(rows)
        (tokens_SB,), (labels_SB, weights_SB) = host.inputs, host.labels
        assert (tokens_SB[0] == data.tokenizer.special_ids.cls).all()
        assert np.array_equal((weights_SB > 0).sum(0), rows.length_B - 1)
        assert np.array_equal(labels_SB[:-1], tokens_SB[1:])
        for length, tokens_S, labels_S in zip(rows.length_B, tokens_SB.T, labels_SB.T, strict=True):
            assert labels_S[length - 2] == tokens_S[length - 1] == data.tokenizer.special_ids.separator
        counted += weights_SB.sum() / len(batch.micro_batches)
        assert np.ptp(weights_SB[weights_SB > 0]) == 0
    predicted, _ = objective.counts(batch.micro_batches[0], 8, 8)
    assert counted == pytest.approx(1, abs=1e-6)
    assert predicted == (batch.micro_batches[0].lengths_G - 1).sum()


def test_what_fills_a_batch_up_weighs_nothing(sentence_data: Path) -> None:
    config = load([], ["model.context=32", f"data.path={sentence_data}", "data.text=document_sentences"])
    data = open_data(config)
    objective = pretraining_objective(config, data.tokenizer, data.data_hash)
    assert data.held_out is not None
    ((rows,),) = data.held_out.batches(BatchShape(2 * data.held_out.rows, 2 * data.held_out.rows))
    weights_SB = objective.batch(rows).labels[1]
    assert not weights_SB[:, rows.row_B < 0].any()
    assert (rows.row_B < 0).any()
    assert weights_SB.sum() == pytest.approx(1, abs=1e-5)


def test_scored_text_stands_after_the_first_symbol(sentence_data: Path) -> None:
    config = load([], ["model.context=32", f"data.path={sentence_data}", "data.text=full_sentences"])
    tokenizer = open_data(config).tokenizer
    frame = causal_frame(tokenizer, config.model.context, in_rows=True)
    tokens = tokenizer.encode("It is.")
    assert frame.around(frame.before, tokens).tolist() == [tokenizer.special_ids.cls, *tokens.tolist()]
    assert frame.most == config.model.context - 1, "as many tokens as a row has after it"
    windows = causal_frame(tokenizer, config.model.context)
    assert windows.around(windows.before, tokens).tolist() == [tokenizer.eod_id, *tokens.tolist()]
