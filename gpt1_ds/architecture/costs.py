"""What a layer costs: FLOPs, the elements that its simple passes go over, and what it keeps for the backward pass.

The pipeline cut, the counter and the planner read these; no model is built from them. Units: a state is one hidden
state of a token, of the model's width. FLOPs are of a forward pass, a multiply and an add counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpt1_ds.config import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """Tokens of a row that a block maps, of all that the model is fed with, and of the encoder's that it reads."""

    tokens: int
    fed: int
    causal: bool
    memory: int = 0

    @property
    def crosses(self) -> bool:
        """Returns whether it has cross attention."""
        return self.memory > 0


@dataclass(frozen=True)
class Elementwise:
    """Elements per token that a layer's simple passes go over, forward and backward together."""

    activation: int = 0  # cut over tensor-parallel ranks, as `moved`
    moved: int = 0  # read or written besides
    norm: int = 0
    dropout: int = 0


@dataclass(frozen=True)
class Costs:
    """The costs of a layer. Numbers per token are means over all tokens of a row, those of the other stack included."""

    part: float = 1.0  # of a row's tokens, the fraction that the layer's stack has
    products: float = 0.0  # FLOPs per token of products with weights
    scores: float = 0.0  # attention scores per token: heads x keys
    unseen: float = 0.0  # fraction of them that a causal mask hides
    head_dim: int = 0
    elementwise: Elementwise = field(default_factory=Elementwise)
    saved: float = 0.0  # states per token kept for the backward pass on every tensor-parallel rank
    saved_cut: float = 0.0  # states per token of which each tensor-parallel rank keeps its part

    def flops(self, causal: bool = False) -> float:
        """Returns FLOPs per token: of products, and of two passes over the scores, q k and weights v. `causal` counts
        only the scores that a causal mask shows.
        """
        return self.products + 4 * (1 - causal * self.unseen) * self.scores * self.head_dim


def block_costs(model: ModelConfig, sizes: Sizes) -> Costs:
    """Returns the costs of a transformer block.

    Saved for the backward pass are its input, the inputs of both norms, the middle state and two dropout masks; cut
    over tensor-parallel ranks q, k, v, attention's output, and the feed-forward layer before and after its activation.
    Cross attention adds a third part of the first, its queries and output, and the source's keys and values.
    """
    width, inner, crosses, drops = model.width, model.attention_width, sizes.crosses, model.residual_dropout > 0
    part, source = sizes.tokens / sizes.fed, sizes.memory / sizes.fed  # of the tokens that the model is fed with
    matrices = 4 * width * inner + (2 + model.gated) * width * model.ffn_width
    activations = (1 + model.gated) * model.ffn_width
    return Costs(
        part=part,
        products=2.0 * (part * (matrices + crosses * 2 * width * inner) + source * 2 * width * inner),
        scores=model.heads * part * (sizes.tokens + sizes.memory),
        unseen=0.5 * sizes.tokens / (sizes.tokens + sizes.memory) * sizes.causal,
        head_dim=model.head_dim,
        elementwise=Elementwise(
            activation=round(part * model.ffn_width),
            moved=round(part * (8 * width + 2 * (3 * inner + activations)) + crosses * (part + source) * 4 * inner),
            norm=round(part * (2 + crosses) * width),
            dropout=round(part * (2 + crosses) * width * drops),
        ),
        saved=part * (4 + 2 * crosses + (2 + crosses) * drops),
        saved_cut=part * (_kept(model) + crosses * 2 * inner / width) + source * 2 * inner / width,
    )


def _kept(model: ModelConfig) -> float:
    """Returns the number of states per token that self-attention and the feed-forward layer keep of what is cut."""
    inner, ffn = model.attention_width / model.width, model.ffn_width / model.width
    masks = (model.ffn_dropout > 0) * ffn
    return 4 * inner + (model.attention == "fused") * inner + (2 + 2 * model.gated) * ffn + masks
