"""T5 as transformers has it: three matrices in the place of our one, a table of relative positions in each stack's
first block. The second version (1.1) has a gated feed-forward layer and a head of its own, whose input is not scaled;
each of the three goes with each of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpt1_ds.architecture.block import FARTHEST, RELATIVE_BUCKETS
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.rules import BOTH_TABLES, GATED, SAME, SPLIT_KV, SPLIT_QKV, Rule, matrix
from gpt1_ds.interop.families.settings import ACTIVATIONS, Settings

_DROPOUTS = ("residual_dropout", "embedding_dropout", "attention_dropout", "ffn_dropout")
_PROJECTIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "gated_gelu": "gated-gelu"}
_CONTEXT = 512  # of pre-training; relative positions know no limit


def _stack(stack: str, mlp: int) -> Iterator[Rule]:
    """Yields the rules of a block of the `encoder` or `decoder`, whose feed-forward layer is its part number `mlp`."""
    first, last = f"{stack}.block.*.layer.0", f"{stack}.block.*.layer.{mlp}"
    three = tuple(f"{first}.SelfAttention.{part}.weight" for part in "qkv")
    yield Rule(f"{stack}.*.attention.qkv.weight", three, SPLIT_QKV)
    yield matrix(f"{stack}.*.attention.out", f"{first}.SelfAttention.o")
    yield matrix(f"{stack}.*.attention_norm", f"{first}.layer_norm")
    yield matrix(f"{stack}.*.mlp.down", f"{last}.DenseReluDense.wo")
    yield matrix(f"{stack}.*.mlp_norm", f"{last}.layer_norm")
    yield matrix(f"{stack}_norm", f"{stack}.final_layer_norm")


def _cross() -> Iterator[Rule]:
    layer = "decoder.block.*.layer.1"
    yield matrix("decoder.*.cross.q", f"{layer}.EncDecAttention.q")
    yield Rule("decoder.*.cross.kv.weight", tuple(f"{layer}.EncDecAttention.{part}.weight" for part in "kv"), SPLIT_KV)
    yield matrix("decoder.*.cross.out", f"{layer}.EncDecAttention.o")
    yield matrix("decoder.*.cross_norm", f"{layer}.layer_norm")


def _up(stack: str, mlp: int, *names: str) -> Rule:
    theirs = tuple(f"{stack}.block.*.layer.{mlp}.DenseReluDense.{name}.weight" for name in names)
    return Rule(f"{stack}.*.mlp.up.weight", theirs, GATED if len(names) == 2 else SAME)


_RULES = (
    matrix("tokens", "shared"),
    *_stack("encoder", 1),
    *_stack("decoder", 2),
    *_cross(),
    Rule(
        "relative.weight",
        tuple(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for stack in ("encoder", "decoder")
        ),
        BOTH_TABLES,
    ),
)
_NEEDS: dict[str, Any] = {
    **{"kind": "encoder_decoder", "norm": "pre", "norm_kind": "rms", "positions": "relative", "biases": False},
    **{"shared": False, "attention_scale": "one", "embedding_norm": False},
}


def _limits(model: ModelConfig, gated: bool) -> Iterator[str]:
    if model.gated is not gated:
        yield f"model.activation={model.activation} does not fit"  # another of the four families has it


def _activation(settings: Settings) -> str:
    """Two newer keys have precedence over `feed_forward_proj`, whose `gated-gelu` means the tanh form."""
    values, stated = settings.values, settings.values.get("feed_forward_proj", "relu")
    parts = stated.split("-") if isinstance(stated, str) else [""]
    gated = values.get("is_gated_act", parts[0] == "gated")
    name = values.get("dense_act_fn", "gelu_new" if stated == "gated-gelu" else parts[-1])
    known = {"gelu_new": "gated_gelu", "gelu_pytorch_tanh": "gated_gelu"} if gated else {"relu": "relu", **ACTIVATIONS}
    if name not in known:
        key = next((key for key in ("dense_act_fn", "feed_forward_proj") if key in values), "feed_forward_proj")
        of = "a gated layer of T5" if gated else "T5"
        raise CheckpointError(
            f"{settings.path}: {key} {values.get(key, stated)!r:.60} is not known of {of}; {' or '.join(known)} is"
        )
    return known[name]


def _has_own_head(settings: Settings) -> bool:
    """transformers ties the head to the embeddings unless the file has another matrix, whatever the keys say."""
    return settings.differ("lm_head.weight", "shared.weight")


def _read(settings: Settings) -> ModelConfig:
    settings.one_of("relative_attention_num_buckets", RELATIVE_BUCKETS)
    settings.one_of("relative_attention_max_distance", FARTHEST)
    settings.switches(is_encoder_decoder=True)
    width, layers = settings.number("width", "d_model", 512), settings.number("layers", "num_layers", 6)
    ffn, decoder = settings.number("ffn", "d_ff", 2048), settings.number("layers", "num_decoder_layers", layers)
    # the older key says whether the head's input is scaled, and not whether its matrix is tied
    scaled = settings.values.get("scale_decoder_outputs", settings.values.get("tie_word_embeddings") is not False)
    values: dict[str, Any] = {
        **dict.fromkeys(_DROPOUTS, settings.real("dropout_rate", 0.1)),
        **{key: value for key, value in _NEEDS.items() if key != "embedding_norm"},
        "logit_scale": "inverse_root_width" if scaled else "one",
        "tied": not _has_own_head(settings),
    }
    return ModelConfig(
        vocab_size=settings.number("vocab_size", "vocab_size", 32128),
        context=settings.number("context", "n_positions", _CONTEXT),
        width=width,
        ffn=None if ffn == 4 * width else ffn,
        layers=layers,
        decoder_layers=None if decoder == layers else decoder,
        heads=settings.number("heads", "num_heads", 8),
        head_width=settings.number("head_width", "d_kv", 64),
        norm_eps=settings.real("layer_norm_epsilon", 1e-6),
        activation=_activation(settings),  # type: ignore[arg-type]  # a value of the tables above
        init="t5",
        **values,
    )


def _write(model: ModelConfig, pad: int) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "n_positions": model.context,
        "d_model": model.width,
        "d_kv": model.head_dim,
        "d_ff": model.ffn_width,
        "num_layers": model.blocks[0],
        "num_decoder_layers": model.blocks[1],
        "num_heads": model.heads,
        "relative_attention_num_buckets": RELATIVE_BUCKETS,
        "relative_attention_max_distance": FARTHEST,
        "dropout_rate": model.residual_dropout,
        "layer_norm_epsilon": model.norm_eps,
        "feed_forward_proj": _PROJECTIONS[model.activation],
        "is_encoder_decoder": True,
        "tie_word_embeddings": model.tied,
        "scale_decoder_outputs": model.logit_scale != "one",
        "decoder_start_token_id": pad,
    }


def _family(gated: bool, tied: bool) -> Family:
    up = ("wi_0", "wi_1") if gated else ("wi",)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *(("lm_head.weight",) if tied else ()))
    return Family(
        model_type="t5",
        title="T5 1.1" if gated and not tied else "T5",
        stem="T5",
        language_model="T5ForConditionalGeneration",
        prefix="",
        needs={**_NEEDS, "tied": tied},
        limits=lambda model: _limits(model, gated),
        read_config=_read,
        write_config=_write,
        rules=(
            *_RULES,
            _up("encoder", 1, *up),
            _up("decoder", 2, *up),
            *(() if tied else (matrix("output", "lm_head"),)),
        ),
        copies=dict.fromkeys(copies, "shared.weight"),
        is_variant=lambda settings: (
            (_activation(settings) == "gated_gelu", not _has_own_head(settings)) == (gated, tied)
        ),
        left_out=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        why_left_out="an unused table of old files",
    )


FAMILIES = tuple(_family(gated, tied) for gated in (False, True) for tied in (True, False))
