"""What an export's `config.json` and `generation_config.json` say."""

from __future__ import annotations

from typing import Any

from gpt1_ds.architecture.layer import NORMAL
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.task import DecodingConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.interop.families.family import Family

CONFIG = "config.json"


def padding_id(tokenizer: Tokenizer) -> int:
    """The id that fills up short rows in transformers; the text of a row does not have it."""
    ids = tokenizer.special_ids
    return next(number for number in (ids.pad, ids.unknown, tokenizer.eod_id) if number is not None)


def their_config(family: Family, model: ModelConfig, tokenizer: Tokenizer, architecture: str) -> dict[str, Any]:
    """`config.json` of the class `architecture`."""
    if model.kind == "encoder_decoder":
        ids = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eod_id}
    elif model.mask == "causal":  # a text begins where another one ended
        ids = {"bos_token_id": tokenizer.eod_id, "eos_token_id": tokenizer.eod_id}
    else:
        ids = {"pad_token_id": padding_id(tokenizer)}
    return {
        "architectures": [architecture],
        "model_type": family.model_type,
        **({"initializer_range": NORMAL.value} if model.init != "t5" else {}),
        "tie_word_embeddings": True,
        **family.write_config(model, padding_id(tokenizer)),
        **ids,
        "dtype": "float32",
    }


Written = tuple[DecodingConfig, int]  # how texts are written, and of how many tokens at most


def generation_config(tokenizer: Tokenizer, model: ModelConfig, written: Written | None) -> dict[str, Any]:
    """`generation_config.json`: what our sampler never draws is suppressed, and a document's end ends the text; how
    texts are `written` where a model was fine-tuned on that.
    """
    never = set(tokenizer.special_ids.present().values()) - {tokenizer.eod_id}
    suppressed = {"suppress_tokens": sorted(never)} if never else {}
    first = {"bos_token_id": tokenizer.eod_id}
    if model.kind == "encoder_decoder":
        first = {"decoder_start_token_id": tokenizer.pad_id, "pad_token_id": tokenizer.pad_id}
    return {**first, "eos_token_id": tokenizer.eod_id, **suppressed, **({} if written is None else _how(written))}


def _how(written: Written) -> dict[str, Any]:
    """transformers divides by length^alpha alone: GNMT's penalty is not known there, and its alpha not the same."""
    decoding, most = written
    how: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": decoding.min_tokens, "do_sample": False}
    if decoding.beams > 1:
        alpha = decoding.length_alpha if decoding.length_penalty == "plain" else 1.0
        how |= {"num_beams": decoding.beams, "length_penalty": alpha, "early_stopping": decoding.early_end}
    return how
