"""GPT-1 as transformers has it.

    tokens.weight                    tokens_embed.weight
    positions.weight                 positions_embed.weight
    blocks.I.attention.qkv           h.I.attn.c_attn      [D, 3 D], columns [3, N, H]; ours [3 D, D], rows [N, 3, H]
    blocks.I.attention.out           h.I.attn.c_proj      [in, out]; ours [out, in], as for the two below
    blocks.I.mlp.{up,down}           h.I.mlp.{c_fc,c_proj}
    blocks.I.{attention,mlp}_norm    h.I.{ln_1,ln_2}

The release of 2018 has the same matrices with a leading 1: [1, in, out]. D width, N heads, H head width.
In these classes `"afn": "gelu"` means the tanh form (`gelu_new` elsewhere in transformers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.family import USUAL, Family
from gpt1_ds.interop.families.rules import QKV, QKV_TRANSPOSED, SAME, Rule, conv1d, linear_rules, same
from gpt1_ds.interop.families.settings import Settings

EPSILON = 1e-5
DROPOUTS = {"residual_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop", "attention_dropout": "attn_pdrop"}
BLOCK_RULES = (
    *linear_rules("blocks.*.attention.qkv", "h.*.attn.c_attn", QKV_TRANSPOSED, QKV),
    *conv1d("blocks.*.attention.out", "h.*.attn.c_proj"),
    *conv1d("blocks.*.mlp.up", "h.*.mlp.c_fc"),
    *conv1d("blocks.*.mlp.down", "h.*.mlp.c_proj"),
)
LEFT_OUT = ("multiple_choice_head.summary.bias", "multiple_choice_head.summary.weight")
WHY_LEFT_OUT = "a multiple-choice head is made anew by fine-tuning"


def sizes_of_gpt(settings: Settings, context: int, vocab_size: int) -> dict[str, Any]:
    """Returns the numbers that GPT-1 and GPT-2 call alike, with what transformers assumes for the two that differ."""
    return {
        "vocab_size": settings.number("vocab_size", "vocab_size", vocab_size),
        "context": settings.number("context", "n_positions", context, "n_ctx", "max_position_embeddings"),
        "width": settings.number("width", "n_embd", 768, "hidden_size"),
        "layers": settings.number("layers", "n_layer", 12, "num_hidden_layers"),
        "heads": settings.number("heads", "n_head", 12, "num_attention_heads"),
        **{here: settings.real(there, 0.1) for here, there in DROPOUTS.items()},
    }


def gpt_config(model: ModelConfig) -> dict[str, Any]:
    """`vocab_size` counts the token rows, without padding."""
    numbers = {"vocab_size": model.vocab_size, "n_positions": model.context, "n_embd": model.width}
    return {**numbers, "n_layer": model.layers, "n_head": model.heads}


def their_dropouts(model: ModelConfig) -> dict[str, float]:
    return {there: getattr(model, here) for here, there in DROPOUTS.items()}


def _read(settings: Settings) -> ModelConfig:
    settings.one_of("afn", "gelu", "gelu_new")
    settings.one_of("layer_norm_epsilon", EPSILON)
    settings.switches(tie_word_embeddings=True, add_cross_attention=False)
    return ModelConfig(**sizes_of_gpt(settings, context=512, vocab_size=40478))


def _write(model: ModelConfig, _pad: int) -> dict[str, Any]:
    return {**gpt_config(model), "afn": "gelu", **their_dropouts(model), "layer_norm_epsilon": EPSILON}


def _limits(model: ModelConfig) -> Iterator[str]:
    if model.ffn_width != 4 * model.width:
        only = f"only 4 * model.width = {4 * model.width}"
        yield f"model.ffn={model.ffn}: transformers' OpenAIGPT knows {only}"


FAMILY = Family(
    model_type="openai-gpt",
    title="GPT-1",
    stem="OpenAIGPT",
    language_model="OpenAIGPTLMHeadModel",
    choices="OpenAIGPTDoubleHeadsModel",
    prefix="transformer.",
    outside=("lm_head.", "score.", "multiple_choice_head."),
    needs={
        **USUAL,
        **{"mask": "causal", "norm": "post", "norm_eps": EPSILON, "embedding_norm": False, "segments": 0},
        **{"activation": "gelu_tanh", "head": "plain"},
    },
    limits=_limits,
    read_config=_read,
    write_config=_write,
    rules=(
        Rule("tokens.weight", ("tokens_embed.weight",), SAME),
        Rule("positions.weight", ("positions_embed.weight",), SAME),
        *BLOCK_RULES,
        *same("blocks.*.attention_norm", "h.*.ln_1"),
        *same("blocks.*.mlp_norm", "h.*.ln_2"),
        Rule("head.weight", ("score.weight",), SAME),
    ),
    copies={"lm_head.weight": "tokens_embed.weight"},
    left_out=LEFT_OUT,
    why_left_out=WHY_LEFT_OUT,
)
