"""Several tasks that one model learns together, each as text (Raffel et al. 2020, section 3.5.2).

An epoch has as many examples as all tasks together, of each at most K (`task.mixture_limit`). Task m has the part
weight_m min(e_m, K)^(1 / T) of them, where e_m are its examples and T is `task.mixture_temperature`: K = e_m and T = 1
mix by size, a large T mixes equally. A task with fewer examples than its part is gone through several times, one with
more continues in the next epoch where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gpt1_ds.config import TaskConfig
from gpt1_ds.data.windows import Int64s, key_of, permute


@dataclass(frozen=True)
class Draw:
    """An epoch has `taken` of the examples [first, first + count) of train."""

    first: int
    count: int
    taken: int

    def numbers(self, epoch: int, *key: object) -> Int64s:
        """Returns int64 [taken]: a permutation of the examples after another, continued from epoch to epoch."""
        place = np.arange(epoch * self.taken, (epoch + 1) * self.taken)
        found = np.empty_like(place)
        for cycle in range(int(place[0]) // self.count, int(place[-1]) // self.count + 1):
            here = place // self.count == cycle
            found[here] = permute(place[here] % self.count, self.count, key_of("mixture", *key, self.first, cycle))
        return self.first + found


def task_draws(config: TaskConfig, groups: Sequence[str]) -> tuple[Draw, ...]:
    """Returns what an epoch has of each task, whose examples stand together and are of one of the `groups`; none where
    the task is no mixture.
    """
    if not config.mixture:
        return ()
    counts = {title: len([*rows]) for title, rows in groupby(groups)}
    size = np.array([counts[part.shown] for part in config.mixture], dtype=np.float64)
    weight = np.array([part.weight for part in config.mixture])
    counted = np.minimum(size, config.mixture_limit or np.inf)
    rate = weight * counted ** (1 / config.mixture_temperature)
    taken = np.maximum(1, np.round(counted.sum() * rate / rate.sum())).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    return tuple(Draw(int(a), int(n), int(t)) for a, n, t in zip(first, size, taken, strict=False))


def epoch_examples(config: TaskConfig, groups: Sequence[str]) -> int:
    """Returns how many training examples an epoch has."""
    return sum(one.taken for one in task_draws(config, groups)) or len(groups)
