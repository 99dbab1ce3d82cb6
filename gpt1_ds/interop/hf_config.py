"""What an export's `config.json` and `generation_config.json` say, and what an import leaves out of the second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt1_ds.architecture.layer import NORMAL
from gpt1_ds.checkpoint import external
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.task import DecodingConfig
from gpt1_ds.data.tokenizers.base import Tokenizer, control_ids
from gpt1_ds.interop.families.family import Family

CONFIG, GENERATION = "config.json", "generation_config.json"
# keys by which `generate` of transformers writes another text, and the value besides null that changes nothing
_WAYS: Mapping[str, Any] = {
    **{"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0, "length_penalty": 1, "early_stopping": False},
    **{"do_sample": False, "temperature": 1, "top_k": 50, "top_p": 1, "min_p": None, "top_h": None, "typical_p": 1},
    **{"epsilon_cutoff": 0, "eta_cutoff": 0, "penalty_alpha": None, "guidance_scale": None, "dola_layers": None},
    **{"min_length": 0, "max_length": 20, "min_new_tokens": None, "max_new_tokens": None, "stop_strings": None},
    **{"repetition_penalty": 1, "encoder_repetition_penalty": 1, "exponential_decay_length_penalty": None},
    **{"no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "sequence_bias": None},
    **{"forced_bos_token_id": None, "forced_eos_token_id": None, "forced_decoder_ids": None, "force_words_ids": None},
    **{"suppress_tokens": None, "begin_suppress_tokens": None, "renormalize_logits": False, "token_healing": False},
}


def padding_id(tokenizer: Tokenizer) -> int:
    """Returns the id that fills up short rows in transformers; the text of a row does not have it."""
    ids = tokenizer.special_ids
    return next(number for number in (ids.pad, ids.unknown, tokenizer.eod_id) if number is not None)


def their_config(family: Family, model: ModelConfig, tokenizer: Tokenizer, architecture: str) -> dict[str, Any]:
    """Returns `config.json` of the class `architecture`."""
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
    """Returns `generation_config.json`: what our sampler never draws is suppressed, and a document's end ends the text.
    Where a model was fine-tuned to write texts, `written` says how.
    """
    never = set(tokenizer.special_ids.present().values()) - {tokenizer.eod_id}
    suppressed = {"suppress_tokens": sorted(never)} if never else {}
    first: dict[str, Any] = {"bos_token_id": tokenizer.eod_id}
    if model.kind == "encoder_decoder":
        first = {"decoder_start_token_id": tokenizer.pad_id, "pad_token_id": tokenizer.pad_id}
        if model.blocks[1] > model.blocks[0]:
            first["use_cache"] = False  # transformers makes a cache for each block of the encoder, too few for these
    return {**first, "eos_token_id": tokenizer.eod_id, **suppressed, **({} if written is None else _how(written))}


def _how(written: Written) -> dict[str, Any]:
    """Returns the settings of `generate`. transformers divides by length^alpha alone: GNMT's penalty is not known
    there, and its alpha is another one.
    """
    decoding, most = written
    how: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": decoding.min_tokens, "do_sample": False}
    if decoding.beams > 1:
        alpha = decoding.length_alpha if decoding.length_penalty == "plain" else 1.0
        how |= {"num_beams": decoding.beams, "length_penalty": alpha, "early_stopping": decoding.early_end}
    return how


def generation_settings(folder: Path, config: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """Returns the file that says how a model of transformers writes texts, and its values. In older folders it is
    `config.json` itself, whose values are `config`. Raises CheckpointError for a file that cannot be read.
    """
    if not (folder / GENERATION).exists():
        return folder / CONFIG, config
    path = external.inside(folder, GENERATION)
    return path, external.read_object(path)


def ways_left_out(path: Path, values: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields remarks on the generation settings `values` of the file `path` that change a text and that `sample` does
    not have.
    """
    settings = {key: values[key] for key, neutral in _WAYS.items() if values.get(key) not in (None, neutral)}
    suppressed = settings.get("suppress_tokens")
    if isinstance(suppressed, list) and all(number in control_ids(tokenizer) for number in suppressed):
        del settings["suppress_tokens"]  # they are suppressed here, too
    if settings:
        shown = ", ".join(f"{key} {value!r:.40}" for key, value in settings.items())
        yield f"{path.name} says how texts are written ({shown}): left out, `sample` writes as its options say"
    given = values.get("eos_token_id")
    numbers = given if isinstance(given, list) else [given]
    ends = [number for number in numbers if number in range(tokenizer.vocab_size)]
    if ends and ends != [tokenizer.eod_id]:
        yield (
            f"{path.name} ends a text with one of the ids {ends!s:.60}: left out, here {tokenizer.eod_id} alone ends it"
        )
