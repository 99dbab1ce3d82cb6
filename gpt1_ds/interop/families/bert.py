"""BERT as transformers has it: three matrices in the place of our one, `LayerNorm` in the place of our norms."""

from __future__ import annotations

from typing import Any

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.family import THEIR_ACTIVATION, USUAL, Family, gelu_alone
from gpt1_ds.interop.families.rules import SAME, SPLIT_QKV, Rule, linear_rules, same
from gpt1_ds.interop.families.settings import Settings

_SELF = "encoder.layer.*.attention.self"
ENCODER_RULES = (
    Rule("tokens.weight", ("embeddings.word_embeddings.weight",), SAME),
    *same("embedding_norm", "embeddings.LayerNorm"),
    *linear_rules("blocks.*.attention.qkv", (f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"), SPLIT_QKV, SPLIT_QKV),
    *same("blocks.*.attention.out", "encoder.layer.*.attention.output.dense"),
    *same("blocks.*.attention_norm", "encoder.layer.*.attention.output.LayerNorm"),
    *same("blocks.*.mlp.up", "encoder.layer.*.intermediate.dense"),
    *same("blocks.*.mlp.down", "encoder.layer.*.output.dense"),
    *same("blocks.*.mlp_norm", "encoder.layer.*.output.LayerNorm"),
)
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def sizes_of_bert(settings: Settings, vocab_size: int, unused_positions: int = 0) -> dict[str, Any]:
    """Returns what BERT and RoBERTa call alike. RoBERTa's table has rows before the first position."""
    settings.switches(tie_word_embeddings=True, add_cross_attention=False, is_decoder=False)
    settings.one_of("position_embedding_type", "absolute")
    width, dropout = settings.number("width", "hidden_size", 768), settings.real("hidden_dropout_prob", 0.1)
    ffn = settings.number("ffn", "intermediate_size", 3072)
    return {
        "vocab_size": settings.number("vocab_size", "vocab_size", vocab_size),
        "context": settings.number("context", "max_position_embeddings", 512) - unused_positions,
        "width": width,
        "ffn": None if ffn == 4 * width else ffn,
        "layers": settings.number("layers", "num_hidden_layers", 12),
        "heads": settings.number("heads", "num_attention_heads", 12),
        "residual_dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": settings.real("attention_probs_dropout_prob", 0.1),
        "norm_eps": settings.real("layer_norm_eps", 1e-12),
        "activation": settings.activation("hidden_act", "gelu"),
        **{"mask": "bidirectional", "embedding_norm": True, "head": "masked"},
    }


def bert_config(model: ModelConfig, unused_positions: int = 0) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.context + unused_positions,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.ffn_width,
        "hidden_act": THEIR_ACTIVATION[model.activation],
        "hidden_dropout_prob": model.residual_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "layer_norm_eps": model.norm_eps,
    }


def _read(settings: Settings) -> ModelConfig:
    settings.one_of("type_vocab_size", 2)
    return ModelConfig(**sizes_of_bert(settings, vocab_size=30522), segments=2)


def _write(model: ModelConfig, _pad: int) -> dict[str, Any]:
    return {**bert_config(model), "type_vocab_size": 2}


FAMILY = Family(
    model_type="bert",
    title="BERT",
    stem="Bert",
    language_model="BertForMaskedLM",
    pairs="BertForPreTraining",
    choices="BertForMultipleChoice",
    classifier="pooled",
    prefix="bert.",
    outside=("cls.", "classifier."),
    needs={**USUAL, "mask": "bidirectional", "norm": "post", "embedding_norm": True, "segments": 2, "head": "masked"},
    limits=gelu_alone,
    read_config=_read,
    write_config=_write,
    rules=(
        *ENCODER_RULES,
        Rule("positions.weight", ("embeddings.position_embeddings.weight",), SAME),
        Rule("segments.weight", ("embeddings.token_type_embeddings.weight",), SAME),
        *same("masked.dense", "cls.predictions.transform.dense"),
        *same("masked.norm", "cls.predictions.transform.LayerNorm"),
        Rule("masked.bias", ("cls.predictions.bias",), SAME),
        *same("pooler.dense", "pooler.dense"),
        *same("next_sentence", "cls.seq_relationship"),
        *same("head", "classifier"),
    ),
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    renamed=RENAMED,
    optional=("masked.", "next_sentence."),
)
