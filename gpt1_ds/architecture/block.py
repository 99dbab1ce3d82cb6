"""What stacks of transformer blocks are made of.

The query-key-value matrix is stored head by head ([N, 3, H, D] as rows), that of cross attention as [N, 2, H, D], the
two halves of a gated feed-forward layer feature by feature ([F, 2, D]): a range of rows is a range of whole heads or
features, and every tensor-parallel size cuts it the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt1_ds.architecture.costs import Costs, Elementwise, Sizes, block_costs
from gpt1_ds.architecture.layer import NORMAL, Initial, Layer, Matrices, Parameter, linear, norm
from gpt1_ds.config import ModelConfig

RELATIVE_BUCKETS, FARTHEST = 32, 128  # of relative positions; from FARTHEST on they share one (Raffel et al. 2020)


def positions(model: ModelConfig) -> Layer:
    """Returns the layer that adds positions and segments to the token embeddings, with the norm and dropout of the sum;
    relative positions' tables, one per stack, which the blocks of a stack share.
    """
    width, parameters = model.width, []
    if model.positions == "learned":
        parameters.append(Parameter("positions.weight", (model.context, width)))
    if model.segments:
        parameters.append(Parameter("segments.weight", (model.segments, width)))
    if model.embedding_norm:
        parameters += norm("embedding_norm", width, model.norm_kind)
    if model.positions == "relative":
        initial = Initial("normal", width**-0.5) if model.init == "t5" else NORMAL
        shape = (model.stacks, model.heads, RELATIVE_BUCKETS)
        parameters.append(Parameter("relative.weight", shape, cut=1, initial=initial))
    saved = float(model.embedding_dropout > 0) + model.embedding_norm
    return Layer("positions", "", tuple(parameters), costs=Costs(saved=saved))


def final_norm(model: ModelConfig, name: str, stack: int = 0) -> Layer:
    """Ends a stack. After it only the last states travel, so it stays with the block that last reads the others."""
    parameters, last = tuple(norm(name, model.width, model.norm_kind)), stack == model.stacks - 1
    costs = Costs(elementwise=Elementwise(norm=model.width), saved=1.0)
    joined = last and (model.stacks == 2 or model.positions == "relative")
    return Layer("norm", name, parameters, stack=stack, costs=costs, joined=joined)


def block(model: ModelConfig, prefix: str, depth: int, sizes: Sizes, stack: int = 0, weights_of: str = "") -> Layer:
    """Returns a transformer block. `weights_of` is the prefix of another one whose weights it has, cross attention
    apart.
    """
    return Layer(
        "block",
        prefix,
        tuple(_parameters(model, weights_of or prefix, prefix if sizes.crosses else "")),
        depth=depth,
        stack=stack,
        weights_of=weights_of,
        norm=model.norm,
        causal=sizes.causal,
        costs=block_costs(model, sizes),
    )


def _parameters(model: ModelConfig, prefix: str, crossing: str) -> Iterator[Parameter]:
    """Yields the parameters of a block; `crossing` is the prefix of cross attention, empty where there is none."""
    width, inner, ffn = model.width, model.attention_width, model.ffn_width
    first, queries, out, up, down = _initials(model)

    def weight(name: str, outputs: int, inputs: int, cut: int, initial: Initial, of: Matrices) -> Iterator[Parameter]:
        return linear(name, outputs, inputs, cut, initial, model.biases, of)

    one, halves = Matrices(), Matrices(1 + model.gated)
    yield from weight(f"{prefix}.attention.qkv", 3 * inner, width, 0, queries, Matrices(3, model.head_dim))
    yield from weight(f"{prefix}.attention.out", width, inner, 1, out, one)
    if crossing:
        alone = Initial("normal", first.value * model.head_dim**-0.5) if model.init == "t5" else first
        yield from weight(f"{crossing}.cross.q", inner, width, 0, alone, one)
        yield from weight(f"{crossing}.cross.kv", 2 * inner, width, 0, first, Matrices(2, model.head_dim))
        yield from weight(f"{crossing}.cross.out", width, inner, 1, out, one)
    yield from weight(f"{prefix}.mlp.up", (1 + model.gated) * ffn, width, 0, up, halves)
    yield from weight(f"{prefix}.mlp.down", width, ffn, 1, down, one)
    for owner, name in ((prefix, "attention_norm"), (crossing, "cross_norm"), (prefix, "mlp_norm")):
        if owner:
            yield from norm(f"{owner}.{name}", width, model.norm_kind)


def _initials(model: ModelConfig) -> tuple[Initial, Initial, Initial, Initial, Initial]:
    """Returns the rules of keys and values, of queries, keys and values, of attention's output, and of the feed-forward
    layer's two matrices.

    T5's are those of its authors' code: queries start small, in the place of a scale of the scores.
    """
    if model.init == "t5":
        width, root = model.width**-0.5, model.attention_width**-0.5
        queries = Initial("normal", width, head_dim=model.head_dim)
        return (
            Initial("normal", width), queries, Initial("normal", root), Initial("normal", width),
            Initial("normal", model.ffn_width**-0.5),
        )  # fmt: skip
    last = NORMAL if model.init == "normal" else Initial("normal", NORMAL.value / (2 * sum(model.blocks)) ** 0.5)
    return NORMAL, NORMAL, last, NORMAL, last
