"""The shape of the transformer. Defaults are a model that trains on a laptop; GPT-1 is configs/model/gpt1.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PROBE_POSITIONS = 64  # of a checkpoint's probe, at most; enough to pass through every parameter of every block
FURTHER = ("ffn", "vocab_multiple", "units")
LARGEST = {  # what a machine could hold; a number far above it would only keep the arithmetic busy
    **{"layers": 1 << 10, "decoder_layers": 1 << 10, "width": 1 << 17, "heads": 1 << 12, "head_width": 1 << 12},
    **{"context": 1 << 20, "ffn": 1 << 20, "units": 1 << 17, "vocab_size": 1 << 24, "vocab_multiple": 1 << 20},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    kind: Literal["gpt", "encoder_decoder", "lstm"] = "gpt"  # gpt: one stack of blocks; lstm: the paper's ablation
    layers: int = 2  # transformer blocks; of an encoder-decoder, those of the encoder
    decoder_layers: int | None = None  # of an encoder-decoder; null: as many as the encoder has
    shared: bool = False  # of an encoder-decoder: both stacks have the same weights, but for cross attention
    width: int = 64  # of the hidden state; a multiple of heads, unless head_width is named
    heads: int = 4  # attention heads per block
    head_width: int | None = None  # channels of an attention head; null: width / heads
    context: int = 128  # tokens that a stack sees, and the number of learned positions
    ffn: int | None = None  # width of the feed-forward layer; null: 4 * width
    units: int = 2048  # of the LSTM; other kinds have none
    vocab_size: int | None = None  # token ids the model knows; null, or named by a shipped preset: the tokenizer's
    vocab_multiple: int = 128  # the embedding's rows are padded to a multiple of this (pad rows never win)
    residual_dropout: float = 0.1  # fraction of each sub-layer's output dropped before the residual sum
    embedding_dropout: float = 0.1  # fraction of token + position embedding dropped
    attention_dropout: float = 0.1  # fraction of attention probabilities dropped
    ffn_dropout: float = 0.0  # fraction of the feed-forward layer's activations dropped
    attention: Literal["exact", "fused"] = "exact"  # exact: same masks on every layout; fused: SDPA's dropout (CUDA)
    attention_scale: Literal["inverse_root", "one"] = "inverse_root"  # of scores: 1 / sqrt(head width), or 1 (T5)
    mask: Literal["causal", "prefix", "bidirectional"] = "causal"  # a token sees those before it; a text's prefix; all
    positions: Literal["learned", "relative", "none"] = "learned"  # relative: a bias of attention scores (T5)
    norm: Literal["post", "pre"] = "post"  # pre: sub-layers read normalised states, and a final norm ends the stack
    norm_kind: Literal["layer", "rms"] = "layer"  # rms: divide by the root mean square, no bias (T5)
    norm_eps: float = 1e-5  # added to the variance, or to the mean square
    embedding_norm: bool = False  # normalise the sum of the embeddings
    segments: int = 0  # learned embeddings of the parts of a text pair; 0: none
    activation: Literal["gelu_tanh", "gelu", "relu", "gated_gelu"] = "gelu_tanh"  # gelu: by the error function
    biases: bool = True  # of linear layers
    head: Literal["plain", "masked"] = "plain"  # masked: dense layer, activation, norm; an output bias
    tied: bool = True  # the head's matrix is that of the token embeddings
    logit_scale: Literal["one", "inverse_root_width"] = "one"  # the last states are multiplied with it (T5, tied)
    init: Literal["normal", "residual", "t5"] = "normal"  # N(0, 0.02); residual: last matrices / sqrt(2 * layers)

    @property
    def ffn_width(self) -> int:
        return 4 * self.width if self.ffn is None else self.ffn

    @property
    def head_dim(self) -> int:
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def attention_width(self) -> int:
        """Returns the width of all heads together."""
        return self.heads * self.head_dim

    @property
    def gated(self) -> bool:
        return self.activation == "gated_gelu"

    @property
    def stacks(self) -> int:
        return 2 if self.kind == "encoder_decoder" else 1

    @property
    def blocks(self) -> tuple[int, ...]:
        """Returns the number of blocks of each stack."""
        return (self.layers,) if self.stacks == 1 else (self.layers, self.decoder_layers or self.layers)

    def problems(self) -> Iterator[str]:
        for key in ("layers", "decoder_layers", "width", "heads", "head_width", "context", *FURTHER):
            value = getattr(self, key)
            if value is not None and value < 1:
                yield f"model.{key}={value} is too small; it must be at least 1"
        for key, largest in LARGEST.items():
            if (getattr(self, key) or 0) > largest:
                yield f"model.{key}={getattr(self, key)} is too large; use at most {largest}"
        possible = self.heads > 0 and 0 < self.width <= LARGEST["width"]
        if self.head_width is None and possible and self.width % self.heads:
            fits = [n for n in range(1, self.width + 1) if self.width % n == 0]
            near = sorted(fits, key=lambda n: (abs(n - self.heads), n))[:2]
            choices = " or ".join(str(n) for n in sorted(near))
            yield f"model.heads={self.heads} does not divide model.width={self.width}; use {choices} heads"
        if self.vocab_size is not None and self.vocab_size < 2:
            yield f"model.vocab_size={self.vocab_size} is too small; leave it out to take the tokenizer's"
        for key in ("residual_dropout", "embedding_dropout", "attention_dropout", "ffn_dropout"):
            if not 0 <= getattr(self, key) < 1:
                yield f"model.{key}={getattr(self, key)} must be in [0, 1)"
        if not 0 < self.norm_eps < 1:
            yield f"model.norm_eps={self.norm_eps} must be in (0, 1); GPT-1 has 1e-5, BERT 1e-12"
        if self.segments not in (0, 2):
            yield f"model.segments={self.segments} must be 0, or 2 for pairs of texts"
        yield from self._combinations()

    def _combinations(self) -> Iterator[str]:
        """Yields choices that exclude one another."""
        two, relative = self.kind == "encoder_decoder", self.positions == "relative"
        if self.decoder_layers is not None and not two:
            yield f"model.decoder_layers={self.decoder_layers} needs model.kind=encoder_decoder; leave it out"
        if self.shared and not two:
            yield "model.shared=true needs model.kind=encoder_decoder; leave it out"
        elif self.shared and len(set(self.blocks)) > 1:
            yield f"model.shared=true needs model.decoder_layers={self.layers}, as many as model.layers; leave it out"
        if two and (self.mask, self.segments, self.head) != ("causal", 0, "plain"):
            yield "model.kind=encoder_decoder has no model.mask, model.segments or model.head; leave them out"
        if self.segments and self.mask == "causal" and not two:
            yield f"model.segments={self.segments}: model.mask=causal has one segment; use model.mask=bidirectional"
        if (two or relative) and self.norm == "post":
            what = "model.kind=encoder_decoder" if two else "model.positions=relative"
            yield f"{what} is built with the norms of T5; use model.norm=pre"
        if relative and self.attention == "fused":
            yield "model.positions=relative has no fused attention; use model.attention=exact"
        if self.attention_scale == "one" and self.init != "t5":
            yield (
                "model.attention_scale=one makes scores too large unless queries start small; use model.init=t5, or "
                "leave it out"
            )
        if self.head == "masked" and (self.norm_kind, self.biases, self.tied) != ("layer", True, True):
            yield (
                f"model.head=masked has LayerNorm, biases and a tied matrix, not model.norm_kind={self.norm_kind}, "
                f"model.biases={str(self.biases).lower()}, model.tied={str(self.tied).lower()}; leave these keys out, "
                "or use model.head=plain"
            )
        if self.head == "masked" and self.gated:
            yield (
                f"model.head=masked has an activation with one input, not model.activation={self.activation}; use "
                "gelu, or model.head=plain"
            )
