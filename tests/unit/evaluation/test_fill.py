"""`fill`: the likeliest tokens of each mask, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt1_ds.common.errors import ArgumentError, ConfigError
from gpt1_ds.config import load
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.evaluation.generate import fill, generate
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from tests.helpers.published import published
from tools.families import FAMILIES, make_data


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A BERT with random weights."""
    return bert(load_tokenizer(make_data(tmp_path_factory.mktemp("masks"), masks=True).parent / "tokenizer"))


def bert(tokenizer: Tokenizer) -> Loaded:
    config = load([], [*FAMILIES["bert"], "model.context=32", f"model.vocab_size={tokenizer.vocab_size}"])
    model = DenseModel(config, tokenizer.vocab_size, TensorParallel(connect_alone())).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return Loaded(model, tokenizer, config, 1, Path("run/step-1"))


def test_likeliest_first_for_every_mask(loaded: Loaded) -> None:
    found = fill(loaded, "The <mask> returns a <mask>.", 3)
    assert [one.mask for one in found] == [0, 0, 0, 1, 1, 1]
    for mask in (0, 1):
        chances = [one.probability for one in found if one.mask == mask]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
    first, last = found[0], found[-1]
    assert first.text.endswith(" returns a <mask>.")
    assert last.text.startswith("The <mask> returns a")
    assert first.token in first.text


def test_the_other_side_of_a_mask_matters(loaded: Loaded) -> None:
    ends = (fill(loaded, f"The <mask> {end}", 1)[0].probability for end in ("returns.", "is a list."))
    assert len({*ends}) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [("no mask", "has no <mask>"), ("<mask>" + " word" * 80, "model.context=32; shorten it")],
)
def test_refused_texts(loaded: Loaded, text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        fill(loaded, text, 1)


def test_an_encoder_does_not_continue_text(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"is an encoder \(model\.mask=bidirectional\).*use fill"):
        generate(loaded, "The", Sampling(tokens=1))


def test_a_causal_model_is_refused(loaded: Loaded) -> None:
    config = replace(loaded.config, model=replace(loaded.config.model, mask="causal"))
    with pytest.raises(ConfigError, match="use sample, in Python generate"):
        fill(replace(loaded, config=config), "a <mask>", 1)


def test_a_model_of_windows_has_seen_no_symbols_around_texts(loaded: Loaded) -> None:
    windows = replace(loaded, config=replace(loaded.config, data=replace(loaded.config.data, text="windows")))
    tokens = loaded.tokenizer.encode("The").tolist()
    mask = loaded.tokenizer.special_ids.require("mask", "a test")
    logits_V = loaded.model.logits(torch.tensor([*tokens, mask]).unsqueeze(1))[-1, 0].float()
    logits_V[[*loaded.tokenizer.special_ids.present().values()]] = -torch.inf
    likeliest = int(logits_V[: loaded.tokenizer.vocab_size].argmax())
    (found,) = fill(windows, "The<mask>", 1)
    assert found.token == loaded.tokenizer.decode([likeliest])
    assert found.probability != fill(loaded, "The<mask>", 1)[0].probability


@pytest.mark.parametrize("text", ["The<mask> returns", "The <mask> and a <mask> <mask>."])
def test_all_tokens_that_there_are(loaded: Loaded, text: str) -> None:
    special, size = {*loaded.tokenizer.special_ids.present().values()}, loaded.tokenizer.vocab_size
    words = sorted(loaded.tokenizer.decode([number]) for number in range(size) if number not in special)
    for top in (size, 100_000):
        found = fill(loaded, text, top)
        for mask in range(text.count("<mask>")):
            assert sorted(one.token for one in found if one.mask == mask) == words


def test_the_text_is_that_of_the_tokens(loaded: Loaded) -> None:
    for one in fill(loaded, "The <mask> ran", 1000):
        assert one.text == f"The{one.token} ran" or "\ufffd" in one.text


def test_pieces_of_words_are_joined(tmp_path: Path) -> None:
    loaded = bert(published("bert", tmp_path / "tokenizer"))
    of = {one.token: one.text for one in fill(loaded, "The dog <mask> here", 100_000)}
    assert (of[","], of["##s"], of["ran"]) == ("the dog, here", "the dogs here", "the dog ran here")
    found = fill(loaded, "The dog <mask>, a <mask> <mask> (x)", 100_000)
    of_each = [{one.token: one.text for one in found if one.mask == mask} for mask in range(3)]
    assert of_each[0]["##s"] == "the dogs, a <mask> <mask> ( x )"
    assert of_each[1]["ran"] == "the dog <mask>, a ran <mask> ( x )"
    assert of_each[2]["ran"] == "the dog <mask>, a <mask> ran ( x )"
