"""The noise floor: how far runs that differ in the seed alone lie apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt1_ds.scaling.points import Point


def noise_floor(points: Sequence[Point]) -> dict[str, Any] | None:
    """Standard deviation of loss, as a share of it, pooled over the groups of runs with the same N, D and U; None
    where no group has two seeds.
    """
    groups = defaultdict(list)
    for point in points:
        groups[point.n, point.d, point.u].append(point)
    squares, freedom, runs, count = 0.0, 0, 0, 0
    for group in groups.values():
        if len({point.seed for point in group}) < 2:
            continue
        losses = np.array([point.loss for point in group])
        squares += float(((losses / losses.mean() - 1) ** 2).sum())
        freedom, runs, count = freedom + len(group) - 1, runs + len(group), count + 1
    return {"relative_std": (squares / freedom) ** 0.5, "groups": count, "runs": runs} if freedom else None
