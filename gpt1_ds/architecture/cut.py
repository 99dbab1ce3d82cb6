"""How the layers of a model are cut into pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Boundaries [0, ..., len(costs)] of `parts` runs whose largest sum is least; of equal ones the most even, then the
    first. Costs are not negative.
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
