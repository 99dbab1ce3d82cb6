"""The shape of the transformer. Defaults are a model that trains on a laptop; GPT-1 is configs/model/gpt1.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LARGEST = {  # what a machine could hold; a number far above it would only keep the arithmetic busy
    **{"layers": 1 << 10, "width": 1 << 17, "heads": 1 << 12, "context": 1 << 20, "ffn_width": 1 << 20},
    **{"units": 1 << 17, "vocab_size": 1 << 24, "vocab_multiple": 1 << 20},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    kind: Literal["gpt", "lstm"] = "gpt"  # lstm: the paper's ablation, one recurrent layer in the place of the blocks
    layers: int = 2  # transformer blocks
    width: int = 64  # of the hidden state; a multiple of heads
    heads: int = 4  # attention heads per block
    context: int = 128  # tokens a block sees, and the number of learned positions
    ffn: int | None = None  # width of the feed-forward layer; null: 4 * width
    units: int = 2048  # of the LSTM; a gpt has none
    vocab_size: int | None = None  # token ids the model knows; null: the tokenizer's
    vocab_multiple: int = 128  # the embedding's rows are padded to a multiple of this (pad rows never win)
    residual_dropout: float = 0.1  # share of each sub-layer's output dropped before the residual sum
    embedding_dropout: float = 0.1  # share of token + position embedding dropped
    attention_dropout: float = 0.1  # share of attention probabilities dropped
    attention: Literal["exact", "fused"] = "exact"  # exact: same masks on every layout; fused: SDPA's dropout (CUDA)
    mask: Literal["causal", "bidirectional"] = "causal"  # which tokens a token sees: those before it, or all
    norm: Literal["post", "pre"] = "post"  # pre: sub-layers read normalised states, and a final norm ends the stack
    norm_eps: float = 1e-5  # added to the variance
    embedding_norm: bool = False  # normalise the sum of the embeddings
    segments: int = 0  # learned embeddings of the parts of a text pair; 0: none
    activation: Literal["gelu_tanh", "gelu"] = "gelu_tanh"  # of the feed-forward layer; gelu: by the error function
    head: Literal["plain", "masked"] = "plain"  # masked: dense layer, activation, norm; an output bias
    init: Literal["normal", "residual"] = "normal"  # N(0, 0.02); residual: sub-layers' last matrices / sqrt(2 * layers)

    @property
    def ffn_width(self) -> int:
        return 4 * self.width if self.ffn is None else self.ffn

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def problems(self) -> Iterator[str]:
        for key in ("layers", "width", "heads", "context", "vocab_multiple", "ffn_width", "units"):
            if getattr(self, key) < 1:
                yield f"model.{key.removesuffix('_width')}={getattr(self, key)} is too small; it must be at least 1"
        for key, largest in LARGEST.items():
            if (getattr(self, key) or 0) > largest:
                yield f"model.{key.removesuffix('_width')}={getattr(self, key)} is too large; use at most {largest}"
        if self.heads > 0 and 0 < self.width <= LARGEST["width"] and self.width % self.heads:
            fits = [n for n in range(1, self.width + 1) if self.width % n == 0]
            near = sorted(fits, key=lambda n: (abs(n - self.heads), n))[:2]
            choices = " or ".join(str(n) for n in sorted(near))
            yield f"model.heads={self.heads} does not divide model.width={self.width}; use {choices} heads"
        if self.vocab_size is not None and self.vocab_size < 2:
            yield f"model.vocab_size={self.vocab_size} is too small; leave it out to take the tokenizer's"
        for key in ("residual_dropout", "embedding_dropout", "attention_dropout"):
            if not 0 <= getattr(self, key) < 1:
                yield f"model.{key}={getattr(self, key)} must be in [0, 1)"
        if not 0 < self.norm_eps < 1:
            yield f"model.norm_eps={self.norm_eps} must be in (0, 1); GPT-1 has 1e-5, BERT 1e-12"
        if self.segments not in (0, 2):
            yield f"model.segments={self.segments} must be 0, or 2 for pairs of texts"
