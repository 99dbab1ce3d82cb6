"""Parameters and FLOPs of a model, and how its layers are cut into pipeline stages.

Conventions for FLOPs per trained token (forward + backward = 3 x forward, multiply and add counted apart):

    PaLM      6 N + 12 L T D        N = weights used in matrix products (embedding once, as the head); nanoGPT's too
    Megatron  6 N + 6 L T D         attention counted for the causal half only

L layers, T context, D width. Recomputation is not counted: these are model, not hardware, FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from gpt1_ds.architecture.architecture import Architecture, architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import Config, ModelConfig


def pipeline_cuts(model: Architecture, stages: int) -> list[int]:
    """Returns the boundaries [0, ..., number of layers] of the stages; joined layers stay together.

    Cutting by FLOPs matters: DeepSpeed's cut by parameter count weighs the tied embedding twice and is a quarter slower
    for GPT-1.
    """
    groups = model.groups()
    starts = [0, *accumulate(len(group) for group in groups)]
    return [starts[cut] for cut in balance([sum(layer.costs.flops() for layer in group) for group in groups], stages)]


def balance(costs: Sequence[float], parts: int) -> list[int]:
    """Returns the boundaries [0, ..., len(costs)] of `parts` runs whose largest sum is least; of equal ones the most
    even, then the first. Costs are not negative.
    """
    count = len(costs)
    assert 1 <= parts <= count, "every part needs a cost"
    before = [0.0, *accumulate(costs)]
    # of costs[first:] in `left` runs: (largest sum, sum of squares), and where the first of these runs ends
    best = [(rest, rest * rest) for rest in (before[-1] - sum_ for sum_ in before)]
    ends: list[list[int]] = []
    for left in range(2, parts + 1):
        found, cuts = list(best), [count] * (count + 1)
        for first in range(count - left + 1):
            least = (math.inf, math.inf)
            for cut in range(first + 1, count - left + 2):
                here = before[cut] - before[first]
                if here > least[0]:  # as all later ones
                    break
                most, squares = best[cut]
                if (one := (max(here, most), squares + here * here)) < least:
                    least, cuts[first] = one, cut
            found[first] = least
        best = found
        ends.append(cuts)
    boundaries = [0]
    for cuts in reversed(ends):
        boundaries.append(cuts[boundaries[-1]])
    return [*boundaries, count]


def parameters(model: ModelConfig, vocab_size: int, head: HeadSpec | None = None) -> int:
    """Returns all parameters, padding apart; GPT-1 has 116,534,784."""
    return sum(parameter.size for parameter in architecture(model, vocab_size, head).parameters.values())


def counts(model: ModelConfig, vocab_size: int) -> dict[str, int]:
    """Returns N in the three conventions of the scaling literature: `all` parameters; `matrices_head`, the weights of
    matrix products with the head, as Hoffmann et al. (2022) count; `transformer`, the blocks alone (Kaplan et al.
    2020).
    """
    layers = architecture(model, vocab_size).layers[:-1]  # the head's matrix is that of the tokens
    products = [layer for layer in layers if layer.kind != "positions"]
    blocks = [layer for layer in layers if layer.depth is not None]
    return {
        "all": parameters(model, vocab_size),
        "matrices_head": sum(size for layer in products for size in layer.matrices),
        "transformer": sum({one.name: one.size for layer in blocks for one in layer.parameters}.values()),
    }


def flops_per_token(
    model: ModelConfig,
    vocab_size: int,
    predicted: float = 1.0,
    causal: bool = False,
    head: HeadSpec | None = None,
    lengths: tuple[int, ...] | None = None,
) -> int:
    """Returns the FLOPs to train on one token of a row of which this fraction is predicted, with the `head` of a task:
    PaLM's convention, or Megatron's with `causal`, which differs where attention is causal. Of two stacks it is the
    mean over the tokens of both, whose `lengths` are given.
    """
    layers = architecture(model, vocab_size, head, predicted, lengths).layers
    return 3 * round(sum(layer.costs.flops(causal) for layer in layers))


def training_flops_per_token(config: Config, vocab_size: int, causal: bool = False) -> int:
    """Returns the FLOPs of pre-training on one token, forward and backward."""
    row = config.row
    return flops_per_token(config.model, vocab_size, row.predicted / row.fed, causal, lengths=row.stacks)
