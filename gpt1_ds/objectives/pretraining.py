"""The objective that a configuration pre-trains with."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from gpt1_ds.architecture.head import pretraining_head
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import key_of
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.causal import Causal, CausalRows, Prefix
from gpt1_ds.objectives.masked import Masked, MaskedText
from gpt1_ds.objectives.spans import Spans, SpanText


def _span_text(config: Config, tokenizer: Tokenizer, key: int) -> SpanText:
    ConfigError.raise_all(tokenizer.special_ids.missing_sentinels(config.objective.sentinels))
    return SpanText(tokenizer.vocab_size - 1, tokenizer.eod_id, tokenizer.pad_id, key, config.data.apart)


def _masked_text(config: Config, tokenizer: Tokenizer, key: int, end: int | None) -> MaskedText:
    mask_id = tokenizer.special_ids.require("mask", "objective.kind=masked")
    special = tokenizer.special_ids.present()
    text_ids = np.setdiff1d(np.arange(tokenizer.first_sentinel), list(special.values()))
    begins_V = tokenizer.begins_word() if config.objective.whole_words else None
    ids = tuple(number for role, number in special.items() if role != "unknown")  # that one stands for text
    return MaskedText(mask_id, text_ids, key, begins_V, end, ids)


def pretraining_objective(
    config: Config, tokenizer: Tokenizer | None = None, data_hash: str = "", seed: int = 0
) -> TextObjective:
    """Held-out text has seed 0. Without a tokenizer it makes no batches but the probe's. Raises ConfigError for a
    tokenizer that lacks a symbol.
    """
    objective, end = config.objective, None if tokenizer is None else _end(config, tokenizer)
    if objective.kind == "causal":
        return Causal(end) if config.data.text == "windows" else CausalRows(end)
    if objective.kind == "prefix":
        pad = 0 if tokenizer is None else tokenizer.pad_id
        return Prefix(objective, config.model, pad, key_of("prefix", seed, data_hash), end)
    if objective.kind == "spans":
        key = key_of("spans", seed, data_hash)
        return Spans(objective, config.model, None if tokenizer is None else _span_text(config, tokenizer, key))
    if objective.kind == "masked":
        text = None if tokenizer is None else _masked_text(config, tokenizer, key_of("mask", seed, data_hash), end)
        return Masked(objective, pretraining_head(config), text)
    assert_never(objective.kind)


def _end(config: Config, tokenizer: Tokenizer) -> int | None:
    """Returns the id after which a document begins that does not see the others; None where there is none. Full
    sentences have a separator in the place of `<eod>` (data/spans.py).
    """
    if not config.data.apart:
        return None
    if config.data.text == "windows":
        return tokenizer.eod_id
    return tokenizer.special_ids.require("separator", f"data.text={config.data.text}")
