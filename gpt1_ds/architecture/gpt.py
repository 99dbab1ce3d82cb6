"""The blocks of GPT-1 (Radford et al. 2018): learned positions, then post-LayerNorm blocks.

The query-key-value matrix is stored head by head ([N, 3, H, D] as rows), so that a range of its rows is a range of
whole heads and every tensor-parallel size cuts it the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt1_ds.architecture.layer import ONES, ZEROS, Elementwise, Layer, Parameter
from gpt1_ds.config import ModelConfig


def body(model: ModelConfig) -> Iterator[Layer]:
    """Everything between the tokens and the head."""
    mask = float(model.embedding_dropout > 0)
    table = Parameter("positions.weight", (model.context, model.width))
    yield Layer("positions", "positions", (table,), saved=mask)
    for depth in range(model.layers):
        yield _block(model, depth)


def _block(model: ModelConfig, depth: int) -> Layer:
    """Saved for the backward pass: its input, the inputs of both norms, the middle state and two dropout masks; cut
    over tensor-parallel ranks q, k, v, attention's output, and the feed-forward layer before and after GELU.
    """
    width, ffn = model.width, model.ffn_width
    return Layer(
        "block",
        f"blocks.{depth}",
        tuple(_parameters(model, f"blocks.{depth}")),
        depth=depth,
        products=2.0 * (4 * width * width + 2 * width * ffn),
        scores=model.heads * model.context,
        head_width=model.head_width,
        elementwise=Elementwise(
            activation=ffn,
            moved=8 * width + 2 * (3 * width + ffn),
            norm=2 * width,
            dropout=2 * width * (model.residual_dropout > 0),
        ),
        saved=4 + 2 * (model.residual_dropout > 0),
        saved_cut=4 + (model.attention == "fused") + 2 * ffn / width,
    )


def _parameters(model: ModelConfig, prefix: str) -> Iterator[Parameter]:
    width, ffn = model.width, model.ffn_width
    yield from _linear(f"{prefix}.attention.qkv", 3 * width, width, cut=0)
    yield from _linear(f"{prefix}.attention.out", width, width, cut=1)
    yield from _linear(f"{prefix}.mlp.up", ffn, width, cut=0)
    yield from _linear(f"{prefix}.mlp.down", width, ffn, cut=1)
    yield from _norm(f"{prefix}.attention_norm", width)
    yield from _norm(f"{prefix}.mlp_norm", width)


def _linear(name: str, outputs: int, inputs: int, cut: int) -> Iterator[Parameter]:
    """A matrix [outputs, inputs]; where its outputs are cut, so is its bias."""
    yield Parameter(f"{name}.weight", (outputs, inputs), cut)
    yield Parameter(f"{name}.bias", (outputs,), 0 if cut == 0 else None, ZEROS)


def _norm(name: str, width: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,), initial=ONES)
    yield Parameter(f"{name}.bias", (width,), initial=ZEROS)
