"""The vectors of sentence-transformers; tests/golden/test_foreign_folders.py compares them with the library's."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.heads import pooled
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.sentence_vector import SentenceVector, Step

WEIGHTS = {"0.weight": torch.ones(3, 8), "0.bias": torch.zeros(3)}
VECTOR = SentenceVector(("cls", "mean"), 9, (1,), (2,), "a: ", (Step("dense", "Tanh"), Step("normalize")), WEIGHTS)


def test_it_comes_back_from_a_manifest() -> None:
    back = SentenceVector.of(json.loads(json.dumps(VECTOR.values)), WEIGHTS)
    assert back == VECTOR
    assert (back.size(4), str(back)) == (3, "cls+mean, dense, normalize")


@pytest.mark.parametrize(
    "change",
    [
        {"pooling": ["attention"]},
        {"pooling": []},
        {"limit": "9"},
        {"first": [-1]},
        {"steps": [{"kind": "lambda"}]},
        {"steps": [{"kind": "dense", "activation": "eval"}]},
        {"steps": [{"kind": "dense", "code": "x"}]},
    ],
    ids=str,
)
def test_what_a_manifest_may_not_say(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        SentenceVector.of({**VECTOR.values, **change}, WEIGHTS)


@pytest.mark.parametrize("weights", [{}, {"0.weight": torch.ones(3, 7)}, {**WEIGHTS, "0.bias": torch.ones(4)}], ids=str)
def test_layers_that_do_not_fit_the_model(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="of its layer 0 after pooling is"):
        SentenceVector.of(VECTOR.values, weights).size(4)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("mean_sqrt_len_tokens", 6 / 3**0.5), ("weightedmean", (1 * 1 + 2 * 2 + 3 * 3) / 6), ("lasttoken", 3.0)],
)
def test_ways_to_pool(mode: Any, expected: float) -> None:
    hidden_SBD = torch.tensor([1.0, 2.0, 3.0, 50.0])[:, None, None].expand(4, 1, 2)
    found_BD = pooled(hidden_SBD, torch.tensor([3]), mode, TensorParallel(connect_alone()))
    torch.testing.assert_close(found_BD, torch.full((1, 2), expected))
