"""Fine-tuned models in transformers: the scores are ours, by the code of the README that they come with."""

from __future__ import annotations

import contextlib
import filecmp
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.predict import Predictor
from gpt1_ds.interop import hf_export
from gpt1_ds.interop.head_export import move_bias
from gpt1_ds.tasks.encoding import encode
from tests.helpers.foreign import import_hf, master
from tests.helpers.served import fields, fine_tune, predictor_of, rows
from tests.helpers.theirs import theirs_of

TOLERANCE = 2e-5
Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def exported(fine_tuned: Runs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("exported")

    def export(shape: str) -> Path:
        if not (folder / shape).exists():
            hf_export.export(fine_tuned(shape), folder / shape)
        return folder / shape

    return export


def ours(run: Path, shape: str) -> tuple[Predictor, list[list[str]], np.ndarray]:
    """(the model, the fields of dev's examples, its scores of them)."""
    predictor, reader = predictor_of(run)
    examples = [fields(shape, row) for row in rows(shape, 41)]
    return predictor, examples, predictor.scores([reader.of_fields(example) for example in examples])


def load(folder: Path, name: str) -> tuple[Any, Any]:
    """(tokenizer, model), every weight of which is in the folder."""
    return transformers.AutoTokenizer.from_pretrained(folder), theirs_of(folder, name)


@torch.no_grad()
def logits(tokenizer: Any, model: Any, *texts: list[str]) -> np.ndarray:
    inputs = tokenizer(*texts, padding=True, return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    return model(**inputs).logits.numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", ["single", "pair", "similarity", "regression"])
def test_a_classifiers_scores_are_ours(shape: str, fine_tuned: Runs, exported: Callable[[str], Path]) -> None:
    bias = master(find_checkpoint(fine_tuned(shape)), "head.bias")
    assert bias.abs().max() > 50 * TOLERANCE, "the head has a bias, which the class of transformers has not"
    predictor, examples, wanted = ours(fine_tuned(shape), shape)
    tokenizer, model = load(exported(shape), "OpenAIGPTForSequenceClassification")
    texts = [list(column) for column in zip(*examples, strict=True)]
    found = logits(tokenizer, model, *texts)
    if shape in ("similarity", "regression"):
        found = found + logits(tokenizer, model, *reversed(texts))
    assert np.ptp(wanted, axis=0).max() > 0.1
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
    names = tuple(model.config.id2label[number] for number in range(wanted.shape[1]))
    assert names == (predictor.task.labels or tuple("012345"))


@pytest.mark.parametrize("shape", ["choice", "question"])
def test_the_choices_scores_are_ours(shape: str, fine_tuned: Runs, exported: Callable[[str], Path]) -> None:
    _, examples, wanted = ours(fine_tuned(shape), shape)
    tokenizer, model = load(exported(shape), "OpenAIGPTDoubleHeadsModel")
    for example, scores in zip(examples, wanted, strict=True):
        document, choices = " ".join(example[:-3]), example[-3:]
        inputs = tokenizer([document] * 3, choices, padding=True, return_tensors="pt")
        extract = inputs["attention_mask"].sum(1) - 1
        with torch.no_grad():
            found = model(inputs["input_ids"].unsqueeze(0), mc_token_ids=extract.unsqueeze(0))
        np.testing.assert_allclose(found.mc_logits[0], scores, rtol=0, atol=TOLERANCE)
    language = load_checkpoint(fine_tuned(shape)).model
    with torch.no_grad():
        tokens = inputs["input_ids"]
        text = language.logits(tokens.T).transpose(0, 1)[..., :500]
    assert (found.logits[0] - text).abs().max() <= 1e-4


@pytest.mark.parametrize("shape", ["single", "pair", "similarity", "regression", "choice", "question"])
def test_the_readme_does_what_predict_does(
    shape: str, fine_tuned: Runs, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(exported(shape))
    card = Path("README.md").read_text()
    assert "{" not in re.sub(r"```.*?```", "", card, flags=re.S), "everything is filled in"
    code = re.search(r"```python\n(.*?)```", card, re.S)
    assert code is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code[1], {})
    found = np.array(json.loads(printed.getvalue()))[0]
    texts = ["It was read by many.", *(["Many read it."] if shape != "single" else [])]
    if shape in ("choice", "question"):
        texts = ["It was read.", *(["What?"] if shape == "question" else []), *(f"choice {n}" for n in (1, 2, 3))]
    predictor, reader = predictor_of(fine_tuned(shape))
    wanted = json.loads(predictor.lines([reader.of_fields(texts)], as_json=True)[0])
    if shape == "regression":
        assert found == pytest.approx(wanted["score"], abs=1e-5)
    elif shape != "question":  # the card's example has no question
        np.testing.assert_allclose(found, list(wanted["scores"].values()), atol=1e-5)


def test_their_pipeline_needs_no_more(fine_tuned: Runs, exported: Callable[[str], Path]) -> None:
    folder = str(exported("single"))
    classify = transformers.pipeline("text-classification", model=folder, tokenizer=folder)
    predictor, examples, scores = ours(fine_tuned("single"), "single")
    probabilities = torch.from_numpy(scores).softmax(-1).max(-1).values.tolist()
    found = classify([example[0] for example in examples], batch_size=4)
    assert [one["label"] for one in found] == [predictor.task.labels[n] for n in scores.argmax(1)]
    np.testing.assert_allclose([one["score"] for one in found], probabilities, atol=1e-5)


def test_their_tokenizer_lays_inputs_out_as_we_do(fine_tuned: Runs, exported: Callable[[str], Path]) -> None:
    loaded = load_checkpoint(fine_tuned("pair"))
    assert loaded.task is not None
    _, reader = predictor_of(fine_tuned("pair"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported("pair"))
    for pair in (["a  b", "<extract><start>"], ["\t<unk>\u00e9\U0001f600", "c"], [".", "<delimiter> x"]):
        example = reader.of_fields(pair)
        encoded = encode(loaded.task, [example], loaded.tokenizer, 160)
        assert tokenizer(*example.texts)["input_ids"] == encoded.tokens.tolist()
    single = transformers.AutoTokenizer.from_pretrained(exported("single"))
    text = "names of a list " * 40
    assert single.model_max_length == 160
    ids = single(text, truncation=True)["input_ids"]
    start, extract = loaded.tokenizer.start_id, loaded.tokenizer.extract_id
    assert ids == [start, *loaded.tokenizer.encode(text)[:158].tolist(), extract]


def test_all_but_one_weight_are_the_checkpoints(fine_tuned: Runs, exported: Callable[[str], Path]) -> None:
    folder = find_checkpoint(fine_tuned("pair"))
    _, model = load(exported("pair"), "OpenAIGPTForSequenceClassification")
    state = model.state_dict()
    assert torch.equal(state["transformer.tokens_embed.weight"], master(folder, "tokens.weight"))
    assert torch.equal(state["score.weight"], master(folder, "head.weight"))
    assert torch.equal(state["transformer.h.0.ln_2.bias"], master(folder, "blocks.0.mlp_norm.bias"))
    assert not torch.equal(state["transformer.h.1.ln_2.bias"], master(folder, "blocks.1.mlp_norm.bias"))


def test_a_bias_moves_into_the_norm_or_is_refused() -> None:
    torch.manual_seed(0)
    weight, bias, norm = torch.randn(3, 16), torch.randn(3), torch.randn(16)
    moved = move_bias(norm, weight, bias)
    torch.testing.assert_close(weight @ moved, weight @ norm + bias, rtol=0, atol=1e-5)
    assert torch.equal(move_bias(norm, weight, torch.zeros(3)), norm)
    with pytest.raises(CheckpointError, match="depend on one another"):
        move_bias(norm, weight[[0, 0, 1]], bias)
    torch.testing.assert_close(weight[0] @ move_bias(norm, weight[[0, 0]], bias[[0, 0]]), weight[0] @ norm + bias[0])


def test_coming_back(exported: Callable[[str], Path], fine_tuned: Runs, tmp_path: Path) -> None:
    (remark,) = import_hf(exported("choice"), tmp_path / "back")
    assert "a multiple-choice head is made anew" in remark
    before, after = (
        manifest.read(folder)["parameters"] for folder in (find_checkpoint(fine_tuned("choice")), tmp_path / "back")
    )
    assert after == {name: value for name, value in before.items() if not name.startswith("head.")}


@pytest.mark.parametrize("shape", ["single", "pair"])
def test_a_classifier_comes_back(shape: str, exported: Callable[[str], Path], fine_tuned: Runs, tmp_path: Path) -> None:
    assert import_hf(exported(shape), tmp_path / "back", task=shape) == []
    _, _, wanted = ours(fine_tuned(shape), shape)
    predictor, _, found = ours(tmp_path / "back", shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
    assert predictor.task.labels == load_checkpoint(fine_tuned(shape)).task.labels  # type: ignore[union-attr]
    hf_export.export(tmp_path / "back", tmp_path / "again")
    files = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert filecmp.cmpfiles(exported(shape), tmp_path / "again", files, shallow=False) == (files, [], [])


def test_a_recurrent_model_is_refused(tiny_data: Path, tmp_path: Path) -> None:
    words = ["model.kind=lstm", "model.layers=1", "model.units=32", "train.steps=2"]
    run = fine_tune("single", tiny_data.parent / "tokenizer", tmp_path / "task", *words)
    with pytest.raises(CheckpointError, match=r"model.kind=lstm: transformers has no such model") as caught:
        hf_export.export(run, tmp_path / "out")
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "out").exists()
    predictor, _, scores = ours(run, "single")
    assert scores.shape == (41, len(predictor.task.labels)), "it is served here"
