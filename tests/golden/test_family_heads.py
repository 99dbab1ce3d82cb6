"""Fine-tuned GPT-2 and BERT in transformers: the scores are ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.predict import Predictor
from gpt1_ds.interop import huggingface
from gpt1_ds.interop.families.registry import family_of_model
from gpt1_ds.interop.hf_task import FineTuned
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.lines import LineReader
from tests.helpers.foreign import make_checkpoint
from tests.helpers.served import fields, fine_tune, rows
from tests.helpers.theirs import BERT, batch, theirs_of

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def tokenizer(tiny_data: Path) -> Path:
    return tiny_data.parent / "tokenizer"


@pytest.mark.parametrize(
    ("shape", "name"), [("single", "GPT2ForSequenceClassification"), ("choice", "GPT2DoubleHeadsModel")]
)
def test_a_fine_tuned_gpt2_has_our_scores(shape: str, name: str, tokenizer: Path, tmp_path: Path) -> None:
    run = fine_tune(shape, tokenizer, tmp_path / "run", "model.norm=pre", "train.steps=2")
    huggingface.export(run, tmp_path / "out")
    predictor = Predictor(load_checkpoint(run))
    reader = LineReader(predictor.task, predictor.settings, "tsv")
    examples = [fields(shape, row) for row in rows(shape, 5)]
    wanted = predictor.scores([reader.of_fields(example) for example in examples])
    model, auto = theirs_of(tmp_path / "out", name), transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for example, scores in zip(examples, wanted, strict=True):
        with torch.no_grad():
            if shape == "single":
                found = model(**auto(example[0], return_tensors="pt")).logits
            else:
                document, choices = " ".join(example[:-3]), example[-3:]
                inputs = auto([document] * 3, choices, padding=True, return_tensors="pt")
                extract = (inputs["attention_mask"].sum(1) - 1).unsqueeze(0)
                found = model(inputs["input_ids"].unsqueeze(0), mc_token_ids=extract).mc_logits
        np.testing.assert_allclose(found[0], scores, rtol=0, atol=2e-5)


def test_a_fine_tuned_bert_has_our_scores(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has a bias, and everything of the language model but its head comes along."""
    head = HeadSpec(2, 1, kind="pooled")
    task = Task("pairs", "classification", "pair", ("no", "yes"), ("accuracy",))
    make_checkpoint(tmp_path / "c", tokenizer, BERT, head=head)
    family = family_of_model(tmp_path, BERT)
    monkeypatch.setattr(FineTuned, "of", lambda *_: FineTuned(family, head, task, BERT.context))
    huggingface.export(tmp_path / "c", tmp_path / "out")
    theirs, texts = theirs_of(tmp_path / "out", "BertForSequenceClassification"), batch()
    inputs = texts.theirs(segments=True)
    inputs["input_ids"] = torch.where(texts.is_real, texts.tokens_BS, theirs.config.pad_token_id)
    tokens_SB, facts_B3 = texts.ours()
    with torch.no_grad():
        found = load_checkpoint(tmp_path / "c").model.scores(tokens_SB, torch.zeros(2, dtype=torch.int64), facts_B3)
        assert (theirs(**inputs).logits - found).abs().max() <= 1e-5
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "what is read is the first token" in card
    assert "extract token" not in card
