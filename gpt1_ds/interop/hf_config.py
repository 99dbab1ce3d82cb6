"""Our model's shape as transformers' `config.json`, and back.

In the OpenAIGPT classes `"afn": "gelu"` means the tanh form that GPT-1 uses (`gelu_new` elsewhere in transformers).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt1_ds.architecture.layer import NORMAL
from gpt1_ds.checkpoint.external import read_object
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.base import Tokenizer

CONFIG = "config.json"
MODEL_TYPE = "openai-gpt"
ACTIVATIONS = ("gelu", "gelu_new")
EPSILON = 1e-5
LARGEST = {"n_layer": 1 << 10, "n_embd": 1 << 16, "n_head": 1 << 12, "n_positions": 1 << 20, "vocab_size": 1 << 24}
# what transformers assumes where a file is silent
DEFAULTS = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 512, "vocab_size": 40478}
SYNONYMS = {
    "n_layer": ("num_hidden_layers",),
    "n_embd": ("hidden_size",),
    "n_head": ("num_attention_heads",),
    "n_positions": ("n_ctx", "max_position_embeddings"),
}
SIZES = {
    "vocab_size": "vocab_size",
    "context": "n_positions",
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
}
DROPOUTS = {"residual_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop", "attention_dropout": "attn_pdrop"}


def their_config(model: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """`config.json` of an OpenAIGPTLMHeadModel; its `vocab_size` counts the token rows, without padding."""
    return {
        "architectures": ["OpenAIGPTLMHeadModel"],
        "model_type": MODEL_TYPE,
        **{there: getattr(model, here) for here, there in SIZES.items()},
        "afn": ACTIVATIONS[0],
        **{there: getattr(model, here) for here, there in DROPOUTS.items()},
        "layer_norm_epsilon": EPSILON,
        "initializer_range": NORMAL.value,
        "bos_token_id": tokenizer.eod_id,  # a text begins where another one ended
        "eos_token_id": tokenizer.eod_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """`generation_config.json`: what our sampler never draws is suppressed, and a document's end ends the text."""
    never = (tokenizer.unknown_id, tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id)
    return {"bos_token_id": tokenizer.eod_id, "eos_token_id": tokenizer.eod_id, "suppress_tokens": sorted(never)}


def model_config(path: Path) -> ModelConfig:
    """The model's shape from a `config.json`. Raises CheckpointError for another architecture or absurd numbers."""
    values = read_object(path)
    if values.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{path}: model_type {values.get('model_type')!r:.60} is not GPT-1's, {MODEL_TYPE!r}")
    activation, epsilon = values.get("afn", ACTIVATIONS[0]), values.get("layer_norm_epsilon", EPSILON)
    if activation not in ACTIVATIONS:
        raise CheckpointError(f"{path}: afn {activation!r:.60} is not GPT-1's; {' or '.join(ACTIVATIONS)} is")
    if epsilon != EPSILON:
        raise CheckpointError(f"{path}: layer_norm_epsilon {epsilon!r:.60} is not GPT-1's, {EPSILON}")
    if values.get("tie_word_embeddings", True) is not True:
        raise CheckpointError(f"{path}: tie_word_embeddings is off; GPT-1's head is its embedding")
    if values.get("add_cross_attention"):
        raise CheckpointError(f"{path}: add_cross_attention is on; GPT-1 has none")
    numbers: dict[str, Any] = {here: _number(path, values, there) for here, there in SIZES.items()}
    shares: dict[str, Any] = {here: _share(path, there, values.get(there, 0.1)) for here, there in DROPOUTS.items()}
    model = ModelConfig(**numbers, **shares)
    for problem in model.problems():
        raise CheckpointError(f"{path}: {problem}")
    return model


def _number(path: Path, values: dict[str, Any], key: str) -> int:
    given = {name: values[name] for name in (key, *SYNONYMS.get(key, ())) if name in values}
    for name, value in given.items():
        if type(value) is not int or not 1 <= value <= LARGEST[key]:
            raise CheckpointError(f"{path}: {name} {value!r:.60} is not a whole number from 1 to {LARGEST[key]}")
    if len(set(given.values())) > 1:
        raise CheckpointError(f"{path}: {' and '.join(f'{name} {value}' for name, value in given.items())} differ")
    return next(iter(given.values()), DEFAULTS[key])


def _share(path: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= 1e9:
        raise CheckpointError(f"{path}: {key} {value!r:.60} is not a number")
    return float(value)
