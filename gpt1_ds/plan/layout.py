"""How a list of stages is cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def balance(costs: Sequence[float], parts: int) -> list[int]:
    """Boundaries [0, ..., len(costs)] of `parts` runs whose largest sum is least; of equal ones the most even.

    Cutting by operations matters: DeepSpeed's cut by parameter count weighs the tied embedding twice and is a quarter
    slower for GPT-1.
    """
    costs = tuple(costs)
    assert 1 <= parts <= len(costs), "every part needs a stage"
    before = [0.0, *accumulate(costs)]

    @cache
    def best(first: int, left: int) -> tuple[float, float, tuple[int, ...]]:
        """(largest sum, sum of squares, boundaries behind `first`) for costs[first:] in `left` runs."""
        if left == 1:
            total = before[-1] - before[first]
            return total, total * total, (len(costs),)
        choices = []
        for cut in range(first + 1, len(costs) - left + 2):
            here = before[cut] - before[first]
            most, squares, behind = best(cut, left - 1)
            choices.append((max(here, most), squares + here * here, (cut, *behind)))
        return min(choices)

    return [0, *best(0, parts)[2]]
