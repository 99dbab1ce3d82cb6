"""One stack of transformer blocks: learned positions, then blocks with the LayerNorm after their sub-layers (GPT-1) or
before them (GPT-2), where a final norm ends the stack.

The query-key-value matrix is stored head by head ([N, 3, H, D] as rows), so that a range of its rows is a range of
whole heads and every tensor-parallel size cuts it the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt1_ds.architecture.layer import NORMAL, Elementwise, Initial, Layer, Parameter, linear, norm
from gpt1_ds.config import ModelConfig


def body(model: ModelConfig) -> Iterator[Layer]:
    """Everything between the tokens and the head."""
    yield _positions(model)
    for depth in range(model.layers):
        yield _block(model, depth)
    if model.norm == "pre":
        final = tuple(norm("final_norm", model.width))
        yield Layer("norm", "final_norm", final, elementwise=Elementwise(norm=model.width), saved=1.0)


def _positions(model: ModelConfig) -> Layer:
    """What is added to the token embeddings, the norm of the sum, and its dropout."""
    parameters = [Parameter("positions.weight", (model.context, model.width))]
    if model.segments:
        parameters.append(Parameter("segments.weight", (model.segments, model.width)))
    if model.embedding_norm:
        parameters += norm("embedding_norm", model.width)
    saved = float(model.embedding_dropout > 0) + model.embedding_norm
    return Layer("positions", "", tuple(parameters), saved=saved)


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
        norm=model.norm,
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
    last = NORMAL if model.init == "normal" else Initial("normal", NORMAL.value / (2 * model.layers) ** 0.5)
    yield from linear(f"{prefix}.attention.qkv", 3 * width, width, cut=0)
    yield from linear(f"{prefix}.attention.out", width, width, cut=1, initial=last)
    yield from linear(f"{prefix}.mlp.up", ffn, width, cut=0)
    yield from linear(f"{prefix}.mlp.down", width, ffn, cut=1, initial=last)
    yield from norm(f"{prefix}.attention_norm", width)
    yield from norm(f"{prefix}.mlp_norm", width)
