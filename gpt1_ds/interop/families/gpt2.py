"""GPT-2 as transformers has it: GPT-1's blocks with the norms before the sub-layers, and a final norm, `ln_f`."""

from __future__ import annotations

from typing import Any

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.family import THEIR_ACTIVATION, USUAL, Family, gelu_alone
from gpt1_ds.interop.families.openai_gpt import (
    BLOCK_RULES,
    LEFT_OUT,
    WHY_LEFT_OUT,
    gpt_config,
    sizes_of_gpt,
    their_dropouts,
)
from gpt1_ds.interop.families.rules import SAME, Rule, same
from gpt1_ds.interop.families.settings import Settings


def _read(settings: Settings) -> ModelConfig:
    settings.switches(
        tie_word_embeddings=True,
        add_cross_attention=False,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
    )
    numbers = sizes_of_gpt(settings, context=1024, vocab_size=50257)
    ffn = 4 * numbers["width"]
    if settings.values.get("n_inner") is not None:
        ffn = settings.number("ffn", "n_inner", ffn)
    return ModelConfig(
        **numbers,
        ffn=None if ffn == 4 * numbers["width"] else ffn,
        norm="pre",
        norm_eps=settings.real("layer_norm_epsilon", 1e-5),
        activation=settings.activation("activation_function", "gelu_new"),
        init="residual",
    )


def _write(model: ModelConfig, _pad: int) -> dict[str, Any]:
    return {
        **gpt_config(model),
        "n_inner": model.ffn,
        "activation_function": THEIR_ACTIVATION[model.activation],
        **their_dropouts(model),
        "layer_norm_epsilon": model.norm_eps,
    }


FAMILY = Family(
    model_type="gpt2",
    title="GPT-2",
    stem="GPT2",
    language_model="GPT2LMHeadModel",
    choices="GPT2DoubleHeadsModel",
    prefix="transformer.",
    outside=("lm_head.", "score.", "multiple_choice_head."),
    needs={**USUAL, "mask": "causal", "norm": "pre", "embedding_norm": False, "segments": 0, "head": "plain"},
    limits=gelu_alone,
    read_config=_read,
    write_config=_write,
    rules=(
        Rule("tokens.weight", ("wte.weight",), SAME),
        Rule("positions.weight", ("wpe.weight",), SAME),
        *BLOCK_RULES,
        *same("blocks.*.attention_norm", "h.*.ln_1"),
        *same("blocks.*.mlp_norm", "h.*.ln_2"),
        *same("final_norm", "ln_f"),
        Rule("head.weight", ("score.weight",), SAME),
    ),
    copies={"lm_head.weight": "wte.weight"},
    left_out=LEFT_OUT,
    why_left_out=WHY_LEFT_OUT,
)
