"""Batches of prompts of unequal length, token by token what transformers' `generate` writes with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.config import load
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import SMALL, make_checkpoint
from tests.helpers.theirs import GPT2

T5 = ["model.layers=2", "model.width=48", "model.heads=4", "model.head_width=16", "model.ffn=96", "model.context=64"]
MODELS = {"gpt1": SMALL, "gpt2": GPT2, "t5": replace(load(["model/t5_v1_1_base"], T5).model, vocab_size=None)}
TOKENS = 14
Both = Callable[[str], tuple[Loaded, Any]]


@pytest.fixture(scope="module")
def both(tiny_data: Path, span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Both:
    place = tmp_path_factory.mktemp("generation")

    @cache
    def models(name: str) -> tuple[Loaded, Any]:
        tokenizer = (span_data if name == "t5" else tiny_data).parent / "tokenizer"
        hf_export.export(make_checkpoint(place / name, tokenizer, MODELS[name]), place / f"{name}-theirs")
        kind = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
        theirs = kind.from_pretrained(place / f"{name}-theirs").eval()
        return load_checkpoint(place / name), theirs

    return models


def sources(loaded: Loaded, count: int = 10) -> list[list[int]]:
    """Ids of text, 3 to 24 each; an encoder's end with the end token."""
    numbers, special = np.random.default_rng(5), set(loaded.tokenizer.special_ids.present().values())
    usual = [number for number in range(loaded.tokenizer.vocab_size) if number not in special]
    end = [loaded.tokenizer.eod_id] if loaded.model.stacks == 2 else []
    return [numbers.choice(usual, int(size)).tolist() + end for size in numbers.integers(3, 25, count)]


def exchange_end(loaded: Loaded, theirs: Any, prompts: list[list[int]]) -> None:
    """Gives the end token the row, in the head of both, of the token with which the most rows begin to end early."""
    texts, end = write(loaded.model, loaded.tokenizer, prompts, Sampling(TOKENS, 0)), loaded.tokenizer.eod_id
    places = {one: {text.index(one) for text in texts if one in text} for text in texts for one in text}
    other = max(places, key=lambda one: len(places[one]))
    with torch.no_grad():
        for weight in (loaded.model.output.weight, theirs.get_output_embeddings().weight):
            weight[[end, other]] = weight[[other, end]]


def theirs_of(loaded: Loaded, model: Any, prompts: list[list[int]], together: bool, **how: Any) -> list[list[int]]:
    """What they write, without the end token; `together` in one batch, else one by one."""
    if not together:
        return [theirs_of(loaded, model, [prompt], True, **how)[0] for prompt in prompts]
    width, end, pad = max(map(len, prompts)), loaded.tokenizer.eod_id, 0
    left = loaded.model.stacks == 1
    padded, seen = [], []
    for prompt in prompts:
        room, real = [pad] * (width - len(prompt)), [1] * len(prompt)
        padded.append(room + prompt if left else prompt + room)
        seen.append([0] * len(room) + real if left else real + [0] * len(room))
    out = model.generate(
        torch.tensor(padded), attention_mask=torch.tensor(seen), max_new_tokens=TOKENS, do_sample=False,
        pad_token_id=end, **how,
    ).tolist()  # fmt: skip
    rows = [row[width if left else 1 :] for row in out]
    return [row[: row.index(end)] if end in row else row for row in rows]


# transformers' GPT-1 counts the padding of a batch as positions, and has no cache
@pytest.mark.parametrize(("name", "together"), [("gpt1", False), ("gpt2", True), ("t5", True)])
def test_every_token_is_theirs(name: str, together: bool, both: Both) -> None:
    loaded, theirs = both(name)
    prompts = sources(loaded)
    exchange_end(loaded, theirs, prompts)
    ways: dict[str, tuple[Sampling, dict[str, Any]]] = {
        "greedy": (Sampling(TOKENS, 0), {}),
        "at least": (Sampling(TOKENS, 0, min_tokens=6), {"min_new_tokens": 6}),
        "repetition": (Sampling(TOKENS, 0, repetition_penalty=1.4), {"repetition_penalty": 1.4}),
        "beams": (Sampling(TOKENS, beams=4), {"num_beams": 4}),
        "no penalty": (Sampling(TOKENS, beams=4, length_alpha=0.0), {"num_beams": 4, "length_penalty": 0.0}),
        "early": (Sampling(TOKENS, beams=3, early_end=True), {"num_beams": 3, "early_stopping": True}),
        "at least, beams": (Sampling(TOKENS, beams=2, min_tokens=5), {"num_beams": 2, "min_new_tokens": 5}),
    }
    lengths = {}
    for way, (sampling, how) in ways.items():
        found = write(loaded.model, loaded.tokenizer, prompts, sampling)
        assert found == theirs_of(loaded, theirs, prompts, together, **how), way
        lengths[way] = {len(row) for row in found}
    for way in ("greedy", "beams"):
        assert len(lengths[way]) > 2, f"{way}: rows end at {lengths[way]}"
