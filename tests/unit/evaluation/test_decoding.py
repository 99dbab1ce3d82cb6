"""Rows of a batch against each row alone, and beams against a search that computes every text as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt1_ds.common.errors import ArgumentError, CheckpointError, ConfigError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.data.tokenizers.base import control_ids
from gpt1_ds.evaluation import decoding
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.objectives.base import row_facts
from tests.helpers.foreign import make_checkpoint

SIZE = ModelConfig(layers=2, width=32, heads=2, context=24)
PREFIX = replace(SIZE, norm="pre", mask="prefix")
T5 = load(["model/t5_v1_1_base"], ["model.layers=2", "model.width=32", "model.heads=2", "model.ffn=48"]).model
MODELS = {
    "causal": SIZE,
    "prefix": PREFIX,
    "relative prefix": replace(PREFIX, positions="relative", init="t5"),
    "lstm": replace(SIZE, kind="lstm", layers=1, units=48),
    "encoder_decoder": replace(T5, vocab_size=None, head_width=16, context=24),
    "bidirectional": replace(SIZE, mask="bidirectional", head="masked"),
}
WRITING = [kind for kind in MODELS if kind != "bidirectional"]
Models = Callable[[str], Loaded]


@pytest.fixture(scope="module")
def models(span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("models")

    @cache
    def model(kind: str) -> Loaded:
        loaded = load_checkpoint(make_checkpoint(place / kind, span_data.parent / "tokenizer", MODELS[kind]))
        if kind == "lstm":
            loaded.model.tokens.weight.data *= 4  # what it reads then matters as much as its biases
        return loaded

    return model


def prompts(loaded: Loaded, count: int = 7) -> list[list[int]]:
    """Of 1 to 20 ids."""
    numbers, never = np.random.default_rng(2), {*control_ids(loaded.tokenizer), loaded.tokenizer.eod_id}
    usual = [number for number in range(loaded.tokenizer.vocab_size) if number not in never]
    return [numbers.choice(usual, int(size)).tolist() for size in (1, 5, 20, 2, 12, 12, 3)[:count]]


@pytest.mark.parametrize("kind", WRITING)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(20, 0),
        Sampling(20, 1.0, top_k=50, top_p=0.95),
        Sampling(12, min_tokens=8, beams=3, length_penalty="gnmt"),
    ],
    ids=["greedy", "drawn", "beams"],
)
def test_a_batch_is_as_each_row_alone(kind: str, sampling: Sampling, models: Models) -> None:
    """Also beyond the context, which rows fill at different times."""
    loaded, seeds = models(kind), range(7)
    given = prompts(loaded)
    found = write(loaded.model, loaded.tokenizer, given, sampling, seeds=seeds)
    for prompt, seed, text in zip(given, seeds, found, strict=True):
        assert write(loaded.model, loaded.tokenizer, [prompt], sampling, seeds=[seed]) == [text]
    if loaded.model.stacks == 1:
        assert max(len(a) + len(b) for a, b in zip(given, found, strict=True)) > loaded.model.context
    assert len({tuple(text) for text in found}) > 4


def test_more_prompts_than_a_batch_come_back_in_order(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = models("causal")
    whole = write(loaded.model, loaded.tokenizer, prompts(loaded), Sampling(4, 0))
    monkeypatch.setattr(decoding, "PROMPTS", 2)
    assert write(loaded.model, loaded.tokenizer, prompts(loaded), Sampling(4, 0)) == whole
    assert write(loaded.model, loaded.tokenizer, [], Sampling(4, 0)) == []
    assert len(write(loaded.model, loaded.tokenizer, [[]], Sampling(4, 0))[0]) == 4, "after the end of a document"


@torch.no_grad()
def logs_of(loaded: Loaded, prompt: list[int], texts: list[list[int]]) -> Tensor:
    """fp32 [texts, V]: log-probabilities of what follows each text, which are of one length; from no caches."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if model.stacks == 2:
        shifted = torch.tensor([[tokenizer.pad_id, *text] for text in texts])
        logits_BV = model(torch.tensor([prompt] * len(texts)), shifted)[:, -1]
    else:
        tokens_SB = torch.tensor([prompt + text for text in texts]).T
        spans = (np.full(len(texts), len(prompt)),) * 2
        facts_BF = torch.from_numpy(row_facts(np.zeros(len(texts), np.int64), spans))
        logits_BV = model.logits(tokens_SB, facts_BF)[-1, :, : tokenizer.vocab_size].float()
    return logits_BV.log_softmax(-1).index_fill(1, torch.tensor(control_ids(tokenizer)), -math.inf)


def likeliest(loaded: Loaded, prompt: list[int], sampling: Sampling, most: int) -> list[int]:
    """What beam search gives, step by step from whole texts."""
    end, beams = loaded.tokenizer.eod_id, sampling.beams
    running, whole = [(0.0, list[int]())], list[tuple[float, list[int]]]()
    for length in range(1, most + 1):
        logs_BV = logs_of(loaded, prompt, [text for _, text in running])
        every = [
            (total + log, [*text, token])
            for (total, text), logs_V in zip(running, logs_BV, strict=True)
            for token, log in enumerate(logs_V.tolist())
        ]
        best, running = sorted(every, key=lambda one: -one[0])[: 2 * beams], []
        for rank, (total, text) in enumerate(best):
            if text[-1] != end and length < most:
                running.append((total, text))
            elif rank < beams:
                denominator = length if sampling.length_penalty == "plain" else (5 + length) / 6
                whole.append((total / denominator**sampling.length_alpha, text))
        running, whole = running[:beams], sorted(whole, key=lambda one: -one[0])[:beams]
        if len(whole) == beams and sampling.early_end:
            break
        if len(whole) == beams and running:
            denominator = length if sampling.length_penalty == "plain" else (5 + length) / 6
            if running[0][0] / denominator**sampling.length_alpha <= whole[-1][0]:
                break
    text = whole[0][1]
    return text[:-1] if text[-1] == end else text


@pytest.mark.parametrize("kind", WRITING)
def test_beams_find_what_whole_texts_give(kind: str, models: Models) -> None:
    loaded, lengths = models(kind), set()
    given = [prompt[:6] for prompt in prompts(loaded, 4)]
    weight, end = loaded.model.output.weight.data, loaded.tokenizer.eod_id
    greedy = write(loaded.model, loaded.tokenizer, given, Sampling(8, 0))
    other, before = max(greedy[0][3:] + greedy[2][2:], key=[*greedy[0], *greedy[2]].count), weight.clone()
    weight[[end, other]] = weight[[other, end]]  # so that texts end early
    for sampling in (
        Sampling(8, beams=3),
        Sampling(8, beams=4, length_penalty="gnmt", length_alpha=0.6),
        Sampling(8, beams=2, early_end=True, length_alpha=2.0),
    ):
        found = write(loaded.model, loaded.tokenizer, given, sampling)
        assert found == [likeliest(loaded, prompt, sampling, 8) for prompt in given]
        lengths |= {len(text) for text in found}
    weight.copy_(before)
    assert len(lengths) > 1, "some end early"


def test_length_penalties() -> None:
    assert Sampling(beams=2, length_alpha=0.5).normalised(-6.0, 9) == -2.0
    assert Sampling(beams=2, length_penalty="gnmt", length_alpha=2.0).normalised(-8.0, 7) == -2.0
    assert Sampling(beams=2, length_alpha=0.0).normalised(-8.0, 7) == -8.0


def test_where_a_text_ends(models: Models) -> None:
    loaded, given = models("causal"), prompts(models("causal"))
    whole = write(loaded.model, loaded.tokenizer, given, Sampling(6, 0))
    found = write(loaded.model, loaded.tokenizer, given, Sampling(6, 0), stopped=lambda ids: ids == whole[2][:3])
    assert found == [*whole[:2], whole[2][:3], *whole[3:]]
    weight = loaded.model.output.weight.data
    before = weight.clone()
    weight[loaded.tokenizer.eod_id] = weight[whole[0][0]] * 2  # as likely as can be
    ended = [len(text) for text in write(loaded.model, loaded.tokenizer, given, Sampling(6, 0))]
    least = [len(text) for text in write(loaded.model, loaded.tokenizer, given, Sampling(6, 0, min_tokens=4))]
    weight.copy_(before)
    assert min(ended) < 4 <= min(least)


def test_what_is_refused(models: Models) -> None:
    loaded = models("causal")
    with pytest.raises(ConfigError, match="bidirectional has no caches"):
        write(models("bidirectional").model, loaded.tokenizer, [[5]], Sampling(2))
    with pytest.raises(ArgumentError, match=r"^beams=5000 must be at most \d+, half of the tokens"):
        write(loaded.model, loaded.tokenizer, [[5]], Sampling(2, beams=5000))
    with pytest.raises(ArgumentError, match=r"^prompts: one has 30 tokens, the encoder reads model\.context=24"):
        write(models("encoder_decoder").model, loaded.tokenizer, [[5], [5] * 30], Sampling(2))
    with pytest.raises(
        ArgumentError, match=r"^min_tokens=24 must be at most 23, what a decoder writes with model\.con"
    ):
        write(models("encoder_decoder").model, loaded.tokenizer, [[5]], Sampling(min_tokens=24))
    assert len(write(models("encoder_decoder").model, loaded.tokenizer, [[5]], Sampling(min_tokens=23))[0]) == 23
    weight = loaded.model.output.weight.data
    kept = float(weight[7, 0])
    weight[7, 0] = math.nan
    with pytest.raises(CheckpointError, match=r"^here: its weights give no finite numbers"):
        write(loaded.model, loaded.tokenizer, [[5]], Sampling(2), name="here")
    weight[7, 0] = kept
