"""A model gets one row for each id of its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop.imported import Imported, fit_vocabulary
from tests.helpers.foreign import random_weights

SMALL = ModelConfig(layers=1, width=16, heads=2, context=8)
MODELS = {
    "tied": (SMALL, ["tokens.weight"]),
    "untied": (replace(SMALL, tied=False), ["tokens.weight", "output.weight"]),
    "masked": (replace(SMALL, mask="bidirectional", head="masked"), ["tokens.weight", "masked.bias"]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_rows_that_fill_up_a_multiple_are_left_out(kind: str, tiny_data: Path) -> None:
    model, tables = MODELS[kind]
    weights, tokenizer = random_weights(model, 512), load_tokenizer(tiny_data.parent / "tokenizer")  # of 500 ids
    found = Imported("hf", Path("source"), model, weights)
    config, fitted, remarks = fit_vocabulary(Config(model=model), found, tokenizer)
    assert config.model.vocab_size == 500
    assert remarks == ["rows 500 to 511 belong to no token id, they fill up a multiple of 128: left out"]
    for name, value in fitted.items():
        assert torch.equal(value, weights[name][:500] if name in tables else weights[name]), name
    for rows, multiple in ((504, 8), (512, 128)):
        filled = Imported("hf", Path("source"), model, random_weights(model, rows))
        _, _, (remark,) = fit_vocabulary(Config(model=model), filled, tokenizer)
        assert remark.endswith(f"belong to no token id, they fill up a multiple of {multiple}: left out")
    own = Imported("hf", Path("source"), model, random_weights(model, 513), own_tokenizer=True)
    _, _, (remark,) = fit_vocabulary(Config(model=model), own, tokenizer)
    assert remark == "rows 500 to 512 belong to no token id, its own tokenizer makes none of them: left out"
    for rows in (501, 511, 513, 640):
        other = Imported("hf", Path("source"), model, random_weights(model, rows))
        with pytest.raises(CheckpointError, match=f"has rows for {rows} token ids, the tokenizer knows 500"):
            fit_vocabulary(Config(model=model), other, tokenizer)
