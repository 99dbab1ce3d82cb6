"""RoBERTa as transformers has it: BERT without segments, and with positions that begin after the id of padding.

Its `token_type_embeddings` have one row, which every token has: an import adds it to the positions. RobertaLMHead has
the exact GELU whatever `hidden_act` says, so no other is possible. It counts the positions of tokens that are not
padding: a text with <pad> among its words has other positions there than here, where padding comes after the tokens.
"""

from __future__ import annotations

from typing import Any

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.bert import ENCODER_RULES, RENAMED, bert_config, sizes_of_bert
from gpt1_ds.interop.families.family import USUAL, Family, gelu_alone
from gpt1_ds.interop.families.rules import SAME, WITH_UNUSED_ROWS, Rule, same
from gpt1_ds.interop.families.settings import Settings


def _first_position(settings: Settings) -> int:
    return settings.number("pad", "pad_token_id", 1, least=0) + 1


def _read(settings: Settings) -> ModelConfig:
    settings.one_of("type_vocab_size", 1)
    settings.one_of("hidden_act", "gelu")
    return ModelConfig(**sizes_of_bert(settings, vocab_size=50265, unused_positions=_first_position(settings)))


def _write(model: ModelConfig, pad: int) -> dict[str, Any]:
    return {**bert_config(model, unused_positions=pad + 1), "type_vocab_size": 1}


FAMILY = Family(
    model_type="roberta",
    title="RoBERTa",
    stem="Roberta",
    language_model="RobertaForMaskedLM",
    classifier="dense",
    prefix="roberta.",
    outside=("lm_head.", "classifier."),
    needs={
        **USUAL,
        **{"mask": "bidirectional", "norm": "post", "embedding_norm": True, "segments": 0, "head": "masked"},
        "activation": "gelu",
    },
    limits=gelu_alone,
    read_config=_read,
    write_config=_write,
    first_position=_first_position,
    rules=(
        *ENCODER_RULES,
        Rule(
            "positions.weight",
            ("embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"),
            WITH_UNUSED_ROWS,
        ),
        *same("masked.dense", "lm_head.dense"),
        *same("masked.norm", "lm_head.layer_norm"),
        Rule("masked.bias", ("lm_head.bias",), SAME),
        *same("pooler.dense", "classifier.dense"),
        *same("head", "classifier.out_proj"),
    ),
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    renamed=RENAMED,
    left_out=("pooler.dense.bias", "pooler.dense.weight"),
    why_left_out="RoBERTa was trained without a pooler",
    optional=("masked.",),
)
