"""`gpt1_ds.load` for every family: what the methods give, against the parts that they are made of."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt1_ds
from gpt1_ds.common.errors import UserError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.evaluation.language_model import LanguageModel
from tests.helpers.foreign import make_checkpoint
from tools.families import FAMILIES

SIZE = {"layers": 2, "width": 32, "heads": 2, "context": 32}
TEXT = "the module returns a list"
Models = Callable[[str], LanguageModel]


def settings(family: str) -> ModelConfig:
    arguments = [argument for argument in FAMILIES[family] if argument.startswith("model.")]
    return load([], [*arguments, *FAMILIES[family], *(f"model.{key}={value}" for key, value in SIZE.items())]).model


@pytest.fixture(scope="module")
def models(tiny_data: Path, sentence_data: Path, span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("models")
    texts = {"gpt1": tiny_data, "bert": sentence_data}

    @cache
    def model(family: str) -> LanguageModel:
        tokenizer = texts.get(family, span_data).parent / "tokenizer"
        return gpt1_ds.load(make_checkpoint(place / family, tokenizer, settings(family)))

    return model


def test_a_pair_and_a_whole(models: Models) -> None:
    loaded = models("gpt1")
    model, tokenizer = loaded
    assert model is loaded.model
    assert tokenizer(TEXT) == tokenizer.encode(TEXT).tolist()
    assert tokenizer.decode(tokenizer(TEXT)) == TEXT
    assert str(loaded).startswith(f"LanguageModel('{loaded.folder}', kind='gpt', ")
    assert len(str(loaded).splitlines()) == 1


@pytest.mark.parametrize("family", ["gpt1", "bert", "prefix"])
def test_a_batch_of_ids_gives_logits_of_each_row(family: str, models: Models) -> None:
    model, tokenizer = models(family)
    ids_BS = torch.tensor([tokenizer(TEXT), tokenizer(TEXT)[::-1]])
    logits_BSV = model(ids_BS)
    assert logits_BSV.shape == (*ids_BS.shape, tokenizer.vocab_size)
    assert logits_BSV.isfinite().all()
    for row, ids_S in zip(logits_BSV, ids_BS, strict=True):
        torch.testing.assert_close(row, model.logits(ids_S.unsqueeze(1))[:, 0, : tokenizer.vocab_size])


def test_two_stacks_take_a_source_and_a_target(models: Models) -> None:
    """Each position sees the target before it and the whole source: the likeliest tokens are what is generated."""
    loaded = models("t5")
    model, tokenizer = loaded
    source = [*tokenizer(TEXT), tokenizer.eod_id]
    target = [tokenizer.pad_id, 40, 50, 60]
    whole = model(torch.tensor([source]), torch.tensor([target]))
    assert whole.shape == (1, 4, tokenizer.vocab_size)
    for length in (1, 2, 3):
        torch.testing.assert_close(model(torch.tensor([source]), torch.tensor([target[:length]])), whole[:, :length])
    forbidden = [number for role, number in tokenizer.special_ids.present().items() if role != "eod"]
    first = whole[0, 0].index_fill(0, torch.tensor(forbidden), -math.inf).argmax()
    written = loaded.generate(TEXT, tokens=1, temperature=0)
    assert first == tokenizer.eod_id or written.strip() == tokenizer.decode([int(first)]).strip()


@pytest.mark.parametrize("family", ["gpt1", "bert", "prefix", "t5"])
def test_scores_are_log_likelihoods(family: str, models: Models) -> None:
    loaded = models(family)
    found = loaded.score(TEXT)
    assert -math.inf < found < 0
    assert found == pytest.approx(loaded.score(TEXT), abs=1e-6)
    if family == "gpt1":  # each token given those before it, after the end of another document
        ids = [loaded.tokenizer.eod_id, *loaded.tokenizer(TEXT)]
        logs_SV = loaded.model(torch.tensor([ids[:-1]]))[0].detach().log_softmax(-1)
        assert found == pytest.approx(float(logs_SV.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum()), abs=1e-4)


def test_text_and_vectors(models: Models) -> None:
    loaded = models("gpt1")
    said = loaded.generate("the", tokens=8, seed=3)
    assert said == loaded.generate("the", tokens=8, seed=3)
    assert said != loaded.generate("the", tokens=8, seed=4)
    vectors = loaded.embed([TEXT, "a file"])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(loaded.embed(["a file"])[0], vectors[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(loaded.embed("a file"), vectors[1], rtol=0, atol=1e-6)
    assert models("bert").embed([TEXT], pooling="cls").shape == (1, 32)


@pytest.mark.parametrize("family", ["gpt1", "bert", "prefix", "t5"])
def test_many_texts_are_as_each_of_them(family: str, models: Models) -> None:
    loaded, texts = models(family), [TEXT, "a file", "a much longer text of the file"]
    assert loaded.score(texts) == pytest.approx([loaded.score(text) for text in texts], abs=1e-4)
    if family == "bert":
        masked = ["the <mask> returns", "a <mask> <mask>"]
        assert loaded.fill(masked, top=2) == [loaded.fill(text, top=2) for text in masked]
        assert [one.mask for one in loaded.fill(masked, top=2)[1]] == [0, 0, 1, 1]
    else:
        drawn = {"tokens": 4, "temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 2}
        assert loaded.generate(texts, **drawn) == [loaded.generate(text, **drawn) for text in texts]


def test_the_nearest_documents_are_those_of_the_highest_cosine(models: Models) -> None:
    loaded, documents = models("gpt1"), ["a file", TEXT, "return"]
    first, second, third = loaded.search(TEXT, documents)
    assert (first.number, first.cosine) == (1, pytest.approx(1, abs=1e-6))
    assert first.cosine >= second.cosine >= third.cosine
    vectors = loaded.embed(documents)
    both = loaded.search([TEXT, "a file"], vectors, top=1)
    assert [[hit.number for hit in hits] for hits in both] == [[1], [0]]


def test_gradients_reach_every_weight_that_the_logits_need(models: Models) -> None:
    for family, inputs in (("gpt1", 1), ("bert", 1), ("t5", 2)):
        loaded = models(family)
        ids = torch.tensor([loaded.tokenizer(TEXT)])
        loss = loaded.model(*[ids] * inputs).log_softmax(-1)[0, :, 7].sum()
        loss.backward()
        grads = {name: weight.grad for name, weight in loaded.model.named_parameters() if weight.grad is not None}
        loaded.model.zero_grad(set_to_none=True)
        assert sum(float(grad.abs().sum()) > 0 for grad in grads.values()) > 10, family
        assert loaded.model.tokens.weight.requires_grad


def test_dropout_of_a_model_that_people_train_is_another_in_each_row_and_call(models: Models) -> None:
    for family, inputs in (("gpt1", 1), ("t5", 2)):
        loaded = models(family)
        assert loaded.config.model.residual_dropout > 0
        ids = [torch.tensor([loaded.tokenizer(TEXT)] * 2)] * inputs
        try:
            loaded.model.train()
            torch.manual_seed(1)
            first, second = loaded.model(*ids), loaded.model(*ids)
            torch.manual_seed(1)
            again = loaded.model(*ids)
        finally:
            loaded.model.eval()
        assert torch.equal(first, again), family
        assert not torch.equal(first, second), family
        assert not torch.equal(first[0], first[1]), family
        torch.testing.assert_close(loaded.model(*ids)[0], loaded.model(*ids)[1])


def test_where_a_model_is(models: Models) -> None:
    loaded = models("gpt1")
    assert loaded.device == torch.device("cpu")
    assert loaded.to("cpu") is loaded


@pytest.mark.parametrize(
    ("family", "call", "says"),
    [
        ("gpt1", lambda m: m.score(["a", ""]), "text='' has 0 tokens"),
        ("gpt1", lambda m: m.score("module " * 50), "scores 1 to 32 at a time"),
        ("gpt1", lambda m: m.generate("a", temperature=-1), "temperature=-1 must be 0 or more"),
        ("gpt1", lambda m: m.generate(["a", 3]), "text=3 is no text; give a str, or a list of them"),
        ("gpt1", lambda m: m.generate(["a", "\ud800"]), "text='\\ud800' holds bytes that are not UTF-8"),
        ("gpt1", lambda m: m.generate("a", top_k=1.5), "top_k=1.5 must be a whole number"),
        ("gpt1", lambda m: m.generate("a", top_p=2), "top_p=2 must be above 0 and at most 1"),
        ("gpt1", lambda m: m.embed("a", pooling="sum"), "pooling='sum' is not known; choose mean, max, cls or words"),
        ("gpt1", lambda m: m.embed("a", pooling="cls"), "pooling=cls: "),
        (
            "gpt1",
            lambda m: m.search("a", np.ones((3, 4))),
            "documents has the shape [3, 4]; vectors are [documents, 32]",
        ),
        ("gpt1", lambda m: m.search("a", np.full((2, 32), np.nan)), "documents has a vector with nan or inf"),
        ("gpt1", lambda m: m.to("bogus"), "device='bogus' cannot be used: Expected one of cpu, cuda"),
        ("gpt1", lambda m: m.to("cuda:99"), "device='cuda:99' cannot be used: "),
        ("gpt1", lambda m: m.search("a", ["b"], top=0), "top=0 must be at least 1"),
        ("gpt1", lambda m: m.search("a", ["b"], top=1.5), "top=1.5 must be a whole number"),
        ("bert", lambda m: m.fill("a <mask>", top="2"), "top='2' must be a whole number"),
        ("gpt1", lambda m: m.fill("a <mask>"), "it fills no <mask> in; use sample, in Python generate"),
        ("gpt1", lambda m: m.predict("a"), "was not fine-tuned on a task"),
        ("bert", lambda m: m.fill("a"), "text='a' has no <mask>"),
        ("t5", lambda m: m.generate("a " * 40, tokens=4), "text has "),
        ("t5", lambda m: m.generate("a", tokens=99), "tokens=99 is too many"),
        ("gpt1", lambda m: m.model([1]), "list is no batch of ids"),
        ("gpt1", lambda m: m.model(torch.ones(2, 2)), "torch.float32 [2, 2] is no batch of ids"),
        ("gpt1", lambda m: m.model(torch.tensor([[1, 500]])), "not in the vocabulary of 500: 1 to 500"),
        ("gpt1", lambda m: m.model(torch.ones(1, 33, dtype=torch.int64)), "33 positions; the model sees 32"),
        ("t5", lambda m: m.model(torch.tensor([[1]])), "takes the source's and the target's ids"),
        ("t5", lambda m: m.embed(["a"]), "sentence vectors are those of causal and bidirectional models"),
        ("bert", lambda m: m.generate("a"), "it does not continue text"),
        ("gpt1", lambda m: gpt1_ds.load("nowhere"), "nowhere: no such folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_one_line(family: str, call: Callable[[Any], object], says: str, models: Models) -> None:
    with pytest.raises(UserError) as told:
        call(models(family))
    assert says in str(told.value)
    assert "--" not in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_the_guides_example_runs(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(gpt1_ds.__file__).parent / "guides" / "python.md").read_text()
    _training, using = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(using, "python.md", "exec"), {"model": models("gpt1")})
    texts, scores, numbers, norm = capsys.readouterr().out.splitlines()
    assert len(eval(texts)) == len(eval(scores)) == len(eval(numbers)) == 2
    assert "tensor(" in norm


def test_public_names_are_listed_and_importing_them_is_light() -> None:
    code = (
        "import sys, gpt1_ds\n"
        "names = [name for name in dir(gpt1_ds) if not name.startswith('_')]\n"
        "assert names == ['load', 'read_metrics', 'train'], names\n"
        "gpt1_ds.read_metrics\n"
        "heavy = {'torch', 'numpy', 'pandas', 'omegaconf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "gpt1_ds.train\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
