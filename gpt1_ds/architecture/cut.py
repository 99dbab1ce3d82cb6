"""How the layers of a model are cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from gpt1_ds.architecture.architecture import Architecture


def pipeline_cuts(model: Architecture, stages: int) -> list[int]:
    """Boundaries [0, ..., number of layers] of the stages; joined layers stay together.

    Cutting by FLOPs matters: DeepSpeed's cut by parameter count weighs the tied embedding twice and is a quarter slower
    for GPT-1.
    """
    groups = model.groups()
    starts = [0, *accumulate(len(group) for group in groups)]
    return [starts[cut] for cut in balance([sum(layer.flops() for layer in group) for group in groups], stages)]


def balance(costs: Sequence[float], parts: int) -> list[int]:
    """Boundaries [0, ..., len(costs)] of `parts` runs whose largest sum is least; of equal ones the most even."""
    costs = tuple(costs)
    assert 1 <= parts <= len(costs), "every part needs a cost"
    before = [0.0, *accumulate(costs)]

    @cache
    def best(first: int, left: int) -> tuple[float, float, tuple[int, ...]]:
        """(largest sum, sum of squares, boundaries after `first`) for costs[first:] in `left` runs."""
        if left == 1:
            total = before[-1] - before[first]
            return total, total * total, (len(costs),)
        choices = []
        for cut in range(first + 1, len(costs) - left + 2):
            here = before[cut] - before[first]
            most, squares, after = best(cut, left - 1)
            choices.append((max(here, most), squares + here * here, (cut, *after)))
        return min(choices)

    return [0, *best(0, parts)[2]]
