"""Sentences scored by a masked model beside transformers' model and tokenizer from its export, a row for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.probes import frame_of, pseudo_log_likelihoods
from gpt1_ds.interop import hf_export
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.questions import questions
from tests.helpers.foreign import make_checkpoint
from tests.helpers.theirs import BERT, ROBERTA, theirs_of
from tests.unit.data.corpora import sentences

MODELS = {"BertForMaskedLM": (BERT, "wordpiece", {}), "RobertaForMaskedLM": (ROBERTA, "gpt2-bpe", {"masks": True})}


def one_by_one(model: Any, auto: Any, text: str) -> float:
    """Their rows begin and end with a symbol; everything between is masked in turn."""
    ids, total = torch.tensor(auto(text)["input_ids"]), 0.0
    for at in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[at] = auto.mask_token_id
        with torch.no_grad():
            total += float(model(input_ids=masked[None]).logits[0, at].double().log_softmax(-1)[ids[at]])
    return total


@pytest.mark.parametrize("name", MODELS)
def test_sentences_have_their_pseudo_log_likelihood(name: str, tmp_path: Path) -> None:
    model, kind, more = MODELS[name]
    (tmp_path / "text.txt").write_text("\n".join(sentences(500, seed=7)))
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "tokenizer", 300, model=kind, **more)  # type: ignore[arg-type]
    make_checkpoint(tmp_path / "ours", tmp_path / "tokenizer", model)
    hf_export.export(tmp_path / "ours", tmp_path / "theirs")
    theirs, auto = theirs_of(tmp_path / "theirs", name), transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")

    texts = sentences(8, seed=8)
    pairs = [Example("0", (good, bad), label="0") for good, bad in zip(texts[::2], texts[1::2], strict=True)]
    loaded = load_checkpoint(tmp_path / "ours")
    frame = frame_of(loaded)
    asked = questions("blimp", pairs, loaded.tokenizer, frame)
    rows = [row for question in asked for row in question.sequences]
    scored = [count for question in asked for count in question.scored]
    assert [row.tolist() for row in rows] == [auto(text)["input_ids"] for text in texts]
    assert max(map(len, rows)) < model.context, "nothing is cut"
    assert frame.mask == auto.mask_token_id
    found = pseudo_log_likelihoods(loaded.model, rows, scored, frame.mask, len(frame.last))[:, 0]
    wanted = [one_by_one(theirs, auto, text) for text in texts]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
