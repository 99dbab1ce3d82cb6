"""How likely T5 finds an answer, and whether it writes it by itself, beside transformers' model and tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.config import TaskConfig, load
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.text_scores import row_scores, target_log_likelihoods
from gpt1_ds.interop import hf_export
from gpt1_ds.objectives.source_target import TextToText
from gpt1_ds.tasks.encoding import encode, fitted
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.reading import task_of_spec
from gpt1_ds.tasks.registry import SPECS
from gpt1_ds.tasks.text import encode_answers
from tests.helpers.foreign import make_checkpoint

SMALL = ["model.layers=2", "model.width=48", "model.heads=4", "model.head_width=16", "model.ffn=96", "model.context=96"]
SETTINGS = TaskConfig(name="mnli", path="x", form="text")
EXAMPLES = [
    Example("0", ("A list of names is returned.", "It returns names.")),
    Example("1", ("The module raises no error when it is called with two arguments.", "No.")),
    Example("2", ("No.", "The object is called.")),
]


@pytest.fixture(scope="module", params=["t5_base", "t5_v1_1_base"])
def both(
    request: pytest.FixtureRequest, span_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Loaded, Path]:
    root = tmp_path_factory.mktemp(request.param)
    model = load([f"model/{request.param}"], SMALL).model
    checkpoint = make_checkpoint(root / "ours", span_data.parent / "tokenizer", replace(model, vocab_size=None))
    hf_export.export(checkpoint, root / "theirs")
    return load_checkpoint(checkpoint), root / "theirs"


def test_answers_have_their_log_likelihood(both: tuple[Loaded, Path]) -> None:
    loaded, exported = both
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported)
    spelled = transformers.AutoTokenizer.from_pretrained(exported)
    task = fitted(task_of_spec(SPECS["mnli"], SETTINGS, SPECS["mnli"].labels), SETTINGS, loaded.config.model)
    encoded, answers = encode(task, EXAMPLES, loaded.tokenizer, 96), encode_answers(task, loaded.tokenizer)
    assert encoded.truncated == 0
    pairs, wanted = [], []
    for number, example in enumerate(EXAMPLES):
        ours = encoded.tokens[slice(*encoded.offsets[number : number + 2])]
        ids = spelled(task.source(example), return_tensors="pt").input_ids
        assert ids[0].tolist() == ours.tolist()
        for word, answer in zip(task.answers, answers, strict=True):
            labels = spelled(word, return_tensors="pt").input_ids
            assert labels[0].tolist() == answer.tolist()
            with torch.no_grad():
                logs = theirs(input_ids=ids, labels=labels).logits.double().log_softmax(-1)
            wanted.append(float(logs[0].gather(1, labels.T).sum()))
            pairs.append((ours, answer))
    assert len({len(target) for _, target in pairs}) > 1, "padding matters"
    found = target_log_likelihoods(loaded.model, pairs, loaded.tokenizer.pad_id)[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_an_exact_match_is_what_they_generate(both: tuple[Loaded, Path]) -> None:
    loaded, exported = both
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported)
    ids = transformers.AutoTokenizer.from_pretrained(exported)("It returns a list.", return_tensors="pt").input_ids
    written = theirs.generate(ids, max_new_tokens=6, do_sample=False)[0, 1:].numpy()
    other = written.copy()
    other[-1] = other[-1] - 1 if other[-1] > 3 else 4
    texts = TextToText.of(2, [written, other, written[:3]], loaded.tokenizer.pad_id, limit=96, multiple=4)
    sources = np.repeat(ids.numpy(), 3, 0)
    batch = texts.batch(sources, np.full(3, sources.shape[1]), np.arange(3), np.ones(3))
    assert row_scores(loaded.model, batch)[:, 1].tolist() == [1, 0, 1]
