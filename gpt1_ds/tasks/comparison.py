"""A score, or by how much one model's is above another's on the same examples, with an interval that joins what moves
it: seeds, and which examples were drawn.

The variance over seeds is that of the seeds' scores or differences; the variance over examples is the jackknife's, of
the mean over seeds, leaving out one of 50 blocks of neighbours at a time (examples about one text stand together). Each
has half an interval of its own, with Student's quantile for its degrees of freedom; the squares of the halves are added
(Zou and Donner 2008). Welch's interval, with one quantile for both, is too short where few seeds agree by luck: of two
seeds its 95 % interval holds the truth in 88 % of simulated studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.tasks.base import Numbers
from gpt1_ds.tasks.metrics import measure
from gpt1_ds.tasks.token_metrics import of_sums, parts

BLOCKS = 50
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """An estimate of a metric or of a difference of two, not x 100; `by_seed` holds one for each seed."""

    by_seed: tuple[float, ...]
    without_block: Mapping[bytes, NDArray[np.float64]]  # [blocks] for each set of examples: the mean over seeds

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)

    @property
    def example_variance(self) -> float:
        """Returns the variance of the mean over seeds; sets of examples are drawn apart."""
        return sum(
            float(((left - left.mean()) ** 2).sum()) * (len(left) - 1) / len(left)
            for left in self.without_block.values()
        )

    def interval(self) -> tuple[float, float]:
        """95 %; of one seed it knows of examples alone."""
        blocks = min(map(len, self.without_block.values()))
        half = math.hypot(_half(self.example_variance, max(1, blocks - 1)), half_over_seeds(self.by_seed))
        return self.mean - half, self.mean + half


def half_over_seeds(by_seed: Sequence[float]) -> float:
    """Returns half of the 95 % interval of the mean over seeds; 0 of one seed, which says nothing."""
    seeds = len(by_seed)
    return _half(variance(by_seed) / seeds, seeds - 1) if seeds > 1 else 0.0


def _half(part: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(part)


def estimate(
    metric: str,
    gold: Numbers,
    answers: Sequence[Numbers],
    others: Sequence[Numbers] = (),
    *,
    classes: int = 0,
    groups: Sequence[str] = (),
) -> Estimate | None:
    """Returns the metric of `answers`, [N] of each seed, to the examples of a task of so many `classes` whose right
    answers are `gold` [N], and which belong to `groups` [N]; with `others`, of the same seeds, by how much it is above
    theirs. None where the metric is not defined for one of the seeds.
    """
    blocks = np.array_split(np.arange(len(gold)), min(BLOCKS, len(gold)))
    tables = []
    for found in (answers, others):
        rows = [_values(metric, gold, one, blocks, classes, np.array(groups)) for one in found]
        if any(row is None for row in rows):
            return None
        tables.append(np.array(rows, dtype=np.float64))
    values = tables[0] - tables[1] if others else tables[0]  # [seeds, 1 + blocks]
    return Estimate(tuple(values[:, 0].tolist()), {repr(gold.tolist()).encode(): values[:, 1:].mean(axis=0)})


def combine(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Returns the weighted sum of what is known of several tasks with the same seeds. Estimates from the same right
    answers are of the same examples, which move them together.
    """
    by_seed = np.array([one.by_seed for one in estimates]).T @ np.array(weights)
    without: dict[bytes, NDArray[np.float64]] = {}
    for one, weight in zip(estimates, weights, strict=True):
        for examples, left in one.without_block.items():
            without[examples] = without.get(examples, 0.0) + weight * left
    return Estimate(tuple(by_seed.tolist()), without)


def mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    return combine(estimates, [1 / len(estimates)] * len(estimates))


def slope_weights(counts: Sequence[int]) -> list[float]:
    """Returns weights of values at `counts` of examples: the least-squares slope per doubling is the sum of values x
    weights.
    """
    doublings = np.log2(np.array(counts, dtype=np.float64))
    centred = doublings - doublings.mean()
    weights: list[float] = (centred / (centred**2).sum()).tolist()
    return weights


def _values(
    metric: str,
    gold: Numbers,
    found: Numbers,
    blocks: Sequence[NDArray[np.int64]],
    classes: int,
    groups: NDArray[np.str_],
) -> NDArray[np.float64] | None:
    """Returns [1 + blocks]: the metric of all examples, then without each block; None where one is not defined."""
    parts_NP = None  # of a score of sums, what each example adds to them: no example is counted twice
    if gold.dtype == object:
        parts_NP = parts(metric, gold, found)
    elif metric == "accuracy":
        parts_NP = np.stack([gold == found, np.ones(len(gold))], 1).astype(np.float64)
    if parts_NP is not None:
        sums = np.array([parts_NP[block].sum(axis=0) for block in blocks])
        rows = [sums.sum(axis=0), *(sums.sum(axis=0) - sums)]
        whole, *left = (of_sums(metric, row_P) for row_P in rows)
        return None if whole is None else np.array([whole, *(one or 0.0 for one in left)])
    values = [measure(metric, gold, found, classes, groups)]
    for block in blocks:
        kept = np.ones(len(gold), dtype=np.bool_)
        kept[block] = False
        values.append(measure(metric, gold[kept], found[kept], classes, groups[kept] if len(groups) else ()))
    return None if None in values else np.array(values, dtype=np.float64)
