"""Targets after their sources, in padded batches, against one at a time: by an encoder and a decoder with caches, or by
one stack that sees all of its source.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.evaluation.text_scores import row_scores, target_log_likelihoods
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.objectives.source_target import TextToText
from tests.helpers.foreign import random_weights

VOCABULARY, PAD = 90, 0
T5 = ModelConfig(
    **{"kind": "encoder_decoder", "layers": 2, "width": 32, "heads": 2, "context": 32, "vocab_size": VOCABULARY},
    **{"norm": "pre", "norm_kind": "rms", "positions": "relative", "biases": False, "activation": "gated_gelu"},
    **{"init": "t5", "attention_scale": "one", "tied": False},
)
MODELS = {
    "t5": T5,
    "prefix": replace(T5, kind="gpt", mask="prefix", positions="learned"),
    "causal": replace(T5, kind="gpt"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> DenseModel:
    config = replace(load(), model=MODELS[request.param])
    weights = random_weights(config.model, VOCABULARY)
    return whole_model(config, lambda info: weights[info.name])


def drawn(count: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    numbers = np.random.default_rng(3)
    sizes = [(int(numbers.integers(1, 20)), int(numbers.integers(1, 9))) for _ in range(count)]
    return [
        (numbers.integers(1, VOCABULARY, source), numbers.integers(1, VOCABULARY, target)) for source, target in sizes
    ]


@torch.no_grad()
def logs_of(model: DenseModel, source: np.ndarray, target: np.ndarray) -> Tensor:
    """fp64 [T, V]: log-probabilities of each target token, given the source and the tokens before it."""
    facts_BF = torch.from_numpy(row_facts(np.zeros(1, np.int64), (np.array([len(source)]),) * 2))
    whole = torch.from_numpy(np.concatenate([source, target]))
    if model.stacks == 2:
        memory = model.encode(torch.from_numpy(source)[:, None], facts_BF)
        shifted_T = torch.tensor([PAD, *target[:-1]])
        states = model.decode(memory, shifted_T[:, None], model.caches())
        return model.logits_of(states)[:, 0].double().log_softmax(-1)
    logits_SV = model.logits(whole[:-1, None], facts_BF)[:, 0]
    return logits_SV[len(source) - 1 :].double().log_softmax(-1)


@pytest.mark.parametrize("tokens", [1, 8192])
def test_any_batch_gives_what_one_pair_alone_gives(model: DenseModel, tokens: int) -> None:
    pairs = drawn()
    each = [logs_of(model, *pair).gather(1, torch.from_numpy(pair[1])[:, None])[:, 0] for pair in pairs]
    found = target_log_likelihoods(model, pairs, PAD, batch_tokens=tokens)[:, 0]
    np.testing.assert_allclose(found, [float(logs.sum()) for logs in each], rtol=1e-5)
    assert found.max() < -1
    if model.stacks == 2:
        told = target_log_likelihoods(model, pairs, PAD, given=1, batch_tokens=tokens)[:, 0]
        np.testing.assert_allclose(told, [float(logs[1:].sum()) for logs in each], rtol=1e-5, atol=1e-12)


def test_what_is_written_greedily_is_an_exact_match(model: DenseModel) -> None:
    source, written = np.array([5, 6, 7]), np.zeros(0, dtype=np.int64)
    for _ in range(5):
        target = np.append(written, 1)
        written = np.append(written, int(logs_of(model, source, target)[-1, :VOCABULARY].argmax()))
    other = np.append(written[:-1], (written[-1] + 1) % VOCABULARY)
    texts = TextToText.of(model.stacks, [written, other, written[:2]], PAD, limit=32, multiple=4)
    batch = texts.batch(np.tile(source, (3, 1)), np.full(3, 3), np.arange(3), np.ones(3))
    assert row_scores(model, batch)[:, 1].tolist() == [1, 0, 1]
