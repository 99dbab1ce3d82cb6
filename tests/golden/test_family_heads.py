"""Fine-tuned GPT-2, BERT and RoBERTa in transformers: the scores are ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import encoder_tokenizers
from tests.helpers.served import fields, fine_tune, predictor_of, rows
from tests.helpers.theirs import theirs_of

MODEL = ("model.mask=bidirectional", "model.embedding_norm=true", "model.head=masked", "model.activation=gelu")


@pytest.mark.parametrize(
    ("shape", "name"), [("single", "GPT2ForSequenceClassification"), ("choice", "GPT2DoubleHeadsModel")]
)
def test_a_fine_tuned_gpt2_has_our_scores(shape: str, name: str, tokenizer: Path, tmp_path: Path) -> None:
    run = fine_tune(shape, tokenizer, tmp_path / "run", "model.norm=pre", "train.steps=2")
    hf_export.export(run, tmp_path / "out")
    predictor, reader = predictor_of(run)
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


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return encoder_tokenizers(tmp_path_factory.mktemp("symbols"), "right same file path value: é")


ENCODERS = {
    "Bert": (*MODEL, "model.segments=2", "model.norm_eps=1e-12"),
    "Roberta": MODEL,
}
CASES = [
    *(("pair", "Bert"), ("regression", "Bert"), ("choice", "Bert")),
    *(("single", "Roberta"), ("similarity", "Roberta"), ("regression", "Roberta")),
]


@pytest.mark.parametrize(("shape", "stem"), CASES)
def test_a_fine_tuned_encoder_has_our_scores(shape: str, stem: str, symbols: dict[str, Path], tmp_path: Path) -> None:
    """Their tokenizer lays the texts out, cuts them and names the segments; a score is one number."""
    words = (*ENCODERS[stem], "model.context=40", "train.steps=12", "train.epochs=null")
    run = fine_tune(shape, symbols[stem.lower()], tmp_path / "run", *words)
    hf_export.export(run, tmp_path / "out")
    predictor, reader = predictor_of(run)
    assert predictor.settings.lm_coefficient == 0
    examples = [fields(shape, row) for row in rows(shape, 5)]
    if shape != "choice":
        examples.append([" ".join(["file"] * 60), *examples[0][1:]])  # is cut
    wanted = predictor.scores([reader.of_fields(example) for example in examples])
    kind = "MultipleChoice" if shape == "choice" else "SequenceClassification"
    model = theirs_of(tmp_path / "out", f"{stem}For{kind}")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for example, scores in zip(examples, wanted, strict=True):
        if shape == "choice":
            inputs = auto([example[0]] * 3, example[-3:], padding=True, return_tensors="pt")
            inputs = {name: value.unsqueeze(0) for name, value in inputs.items()}
        else:
            inputs = auto(*example, truncation=True, return_tensors="pt")
        with torch.no_grad():
            np.testing.assert_allclose(model(**inputs).logits[0], scores, rtol=0, atol=2e-5)
    assert model.config.problem_type == {"choice": None, "regression": "regression"}.get(
        shape, "single_label_classification"
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "what is read is the first token" in card
    assert "extract token" not in card
    if shape != "choice":
        assert predictor.lines([reader.of_fields(examples[0])], as_json=True)


def test_choices_of_a_model_without_segments_stay_here(symbols: dict[str, Path], tmp_path: Path) -> None:
    run = fine_tune("choice", symbols["roberta"], tmp_path / "run", *ENCODERS["Roberta"], "train.steps=1")
    with pytest.raises(CheckpointError, match="a Roberta with a head for them cannot be exported; `gpt1-ds predict`"):
        hf_export.export(run, tmp_path / "out")
