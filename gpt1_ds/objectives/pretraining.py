"""The objective that a configuration pre-trains with."""

from __future__ import annotations

import numpy as np

from gpt1_ds.architecture.head import pretraining_head
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import key_of
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.causal import Causal
from gpt1_ds.objectives.masked import Masked, MaskedText


def pretraining_objective(
    config: Config, tokenizer: Tokenizer | None = None, data_hash: str = "", seed: int = 0
) -> TextObjective:
    """Held-out text has seed 0. Without a tokenizer it makes no batches but the probe's. Raises ConfigError for a
    tokenizer that lacks a symbol.
    """
    objective = config.objective
    if objective.kind == "causal":
        return Causal()
    text = None
    if tokenizer is not None:
        mask_id = tokenizer.special_ids.require("mask", "objective.kind=masked")
        special = list(tokenizer.special_ids.present().values())
        text_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), special)
        begins_V = tokenizer.begins_word() if objective.whole_words else None
        text = MaskedText(mask_id, text_ids, key_of("mask", seed, data_hash), begins_V)
    return Masked(objective, pretraining_head(config), text)
