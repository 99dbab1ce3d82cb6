"""Spans and tags in folders of transformers: what theirs answers, ours answers, and the other way round."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gpt1_ds import load
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import encoder_tokenizers, import_hf
from tests.helpers.theirs import random_encoder

TAGS = ["O", "B-x", "I-x"]
CLASSES = {
    "BertForQuestionAnswering": "squad2",
    "RobertaForQuestionAnswering": "span",
    "BertForTokenClassification": "tagging",
    "RobertaForTokenClassification": "tagging",
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return encoder_tokenizers(tmp_path_factory.mktemp("symbols"))


def make_theirs(name: str, tokenizer: Path, folder: Path) -> Any:
    if "Question" in name:
        return random_encoder(name, tokenizer, folder, seed=2)
    tags = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: number for number, tag in enumerate(TAGS)}}
    model = random_encoder(name, tokenizer, folder, seed=2, **tags)
    with torch.no_grad():  # so that the words decide
        model.base_model.embeddings.word_embeddings.weight.mul_(10)
        model.base_model.encoder.layer[-1].output.LayerNorm.bias.zero_()
        model.classifier.bias.zero_()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CLASSES)
def test_answers_are_theirs_and_a_second_export_is_the_first(
    name: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = tokenizers[name.partition("For")[0].lower()]
    model = make_theirs(name, tokenizer, tmp_path / "theirs")
    assert import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizer, CLASSES[name]) == []
    ours = load(tmp_path / "ours")
    hf_export.export(tmp_path / "ours", tmp_path / "again")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    again = getattr(transformers, name).from_pretrained(tmp_path / "again").eval()
    question, context = "a list of names", "the module returns an object when it is called with no error at all"
    if "Question" in name:
        assert_spans(ours, again, auto, question, context)
    else:
        assert_tags(ours, again, auto, context.split())
    inputs = auto(question, context, return_tensors="pt")
    with torch.no_grad():
        for one, other in zip(model(**inputs).to_tuple(), again(**inputs).to_tuple(), strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    import_hf(tmp_path / "again", tmp_path / "back", task=CLASSES[name])
    hf_export.export(tmp_path / "back", tmp_path / "third")
    files = sorted(path.name for path in (tmp_path / "again").iterdir() if path.is_file())
    assert filecmp.cmpfiles(tmp_path / "again", tmp_path / "third", files, shallow=False) == (files, [], [])


def assert_spans(ours: Any, theirs: Any, auto: Any, question: str, context: str) -> None:
    found = ours.predict((question, context))
    inputs = auto(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    kinds = inputs.sequence_ids(0)
    with torch.no_grad():
        output = theirs(**inputs)
    begins, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    places = [at for at, kind in enumerate(kinds) if kind == 1]
    spans = [(begins[i] + ends[j], i, j) for i in places for j in places if i <= j < i + 30]
    _, first, last = max(spans)
    assert (found.start, found.stop) == (offsets[first][0] + (context[offsets[first][0]] == " "), offsets[last][1])
    assert found.text == context[found.start : found.stop]


def assert_tags(ours: Any, theirs: Any, auto: Any, words: list[str]) -> None:
    found = ours.predict({"tokens": words})
    pipe = transformers.pipeline("token-classification", model=theirs, tokenizer=auto, ignore_labels=[])
    borders = [len(" ".join(words[:number])) + (number > 0) for number in range(len(words))]
    first = {}
    for piece in pipe(" ".join(words)):
        start = piece["start"] + (" ".join(words)[piece["start"]] == " ")
        first.setdefault(start, piece["entity"])
    assert list(found.tags) == [first[border] for border in borders]
    assert len(set(found.tags)) > 1, "the words matter"


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("BertForQuestionAnswering", "single", "its head is for spans, --task single is a regression"),
        ("BertForQuestionAnswering", "tagging", "its head is for spans, --task tagging is a tagging"),
        ("BertForTokenClassification", "squad", "its head is for tags, --task squad is a span"),
        ("BertForTokenClassification", None, "is a fine-tuned model; say what it reads"),
    ],
)
def test_a_wrong_task_is_refused(
    name: str, task: str | None, message: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    make_theirs(name, tokenizers["bert"], tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=message):
        import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["bert"], task)
