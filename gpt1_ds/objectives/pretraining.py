"""The objective that a configuration pre-trains with."""

from __future__ import annotations

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
    return SpanText(tokenizer.vocab_size - 1, tokenizer.eod_id, tokenizer.pad_id, key)


def pretraining_objective(
    config: Config, tokenizer: Tokenizer | None = None, data_hash: str = "", seed: int = 0
) -> TextObjective:
    """Held-out text has seed 0. Without a tokenizer it makes no batches but the probe's. Raises ConfigError for a
    tokenizer that lacks a symbol.
    """
    objective = config.objective
    if objective.kind == "causal":
        return Causal() if config.data.text == "windows" else CausalRows()
    if objective.kind == "prefix":
        pad = 0 if tokenizer is None else tokenizer.pad_id
        return Prefix(objective, config.model, pad, key_of("prefix", seed, data_hash))
    if objective.kind == "spans":
        key = key_of("spans", seed, data_hash)
        return Spans(objective, config.model, None if tokenizer is None else _span_text(config, tokenizer, key))
    text = None
    if tokenizer is not None:
        mask_id = tokenizer.special_ids.require("mask", "objective.kind=masked")
        special = list(tokenizer.special_ids.present().values())
        text_ids = np.setdiff1d(np.arange(tokenizer.first_sentinel), special)
        begins_V = tokenizer.begins_word() if objective.whole_words else None
        text = MaskedText(mask_id, text_ids, key_of("mask", seed, data_hash), begins_V)
    return Masked(objective, pretraining_head(config), text)
