"""95 % intervals of the scores of probes: what another draw of as many examples may give, for one model.

- of a share that is right, Wilson's (1927); of the mean of several shares, which count alike, theirs put together as
  Zou and Donner (2008) do: no lower end is below 0, and all right is not certainty
- of the area under the ROC curve, DeLong et al.'s (1988) standard error, computed from ranks (Sun and Xu 2014)
- of a mean of numbers, or of several such means, which count alike, that of a normal distribution
- of Matthews' correlation, the percentiles of a bootstrap: the counts of right and wrong answers of either class, drawn
  again with a fixed seed. A threshold is not fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
DRAWS = 2000  # of the bootstrap


def of_shares(shares: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Returns (low, high) of the mean of `shares`, each of as many examples as `counts` says."""
    share_K, count_K = np.asarray(shares, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    scale_K = 1 + Z**2 / count_K
    centre_K = (share_K + Z**2 / (2 * count_K)) / scale_K
    half_K = Z / scale_K * np.sqrt(share_K * (1 - share_K) / count_K + (Z / (2 * count_K)) ** 2)
    below, above = (np.sqrt(np.square(part_K).mean() / len(share_K)) for part_K in
                    (share_K - centre_K + half_K, centre_K + half_K - share_K))  # fmt: skip
    mean = share_K.mean()
    return max(0.0, float(mean - below)), min(1.0, float(mean + above))


def of_mean(values_N: NDArray[np.float64]) -> tuple[float, float]:
    """Returns (low, high) of the mean of numbers; of one number the number itself."""
    half = Z * float(values_N.std(ddof=1)) / len(values_N) ** 0.5 if len(values_N) > 1 else 0.0
    return float(values_N.mean()) - half, float(values_N.mean()) + half


def of_means(parts: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Returns (low, high) of the mean of the means of `parts`, which count alike; a part of one number adds nothing."""
    mean = float(np.mean([part.mean() for part in parts]))
    halves = [(of_mean(part)[1] - part.mean()) / len(parts) for part in parts]
    half = float(np.sqrt(np.square(halves).sum()))
    return mean - half, mean + half


def of_area(values_N: NDArray[np.float64], gold_N: NDArray[np.int64]) -> tuple[float, float, float] | None:
    """Returns (area under the ROC curve, low, high) of values that are to be higher where `gold_N` is 1 than where it
    is 0: how often they are, for a pair of both; equals count half. None where all are of one class. Raises DataError
    when scipy is not installed.
    """
    try:
        from scipy.stats import rankdata
    except ImportError:
        raise DataError("the probe cola needs scipy; pip install 'gpt1-ds[finetune]'") from None
    is_one = gold_N == 1
    ones, zeros = int(is_one.sum()), int((~is_one).sum())
    if not ones or not zeros:
        return None
    ranks_N = rankdata(values_N)
    higher_P = (ranks_N[is_one] - rankdata(values_N[is_one])) / zeros  # of each 1, the share of the 0s that it is above
    higher_Q = 1 - (ranks_N[~is_one] - rankdata(values_N[~is_one])) / ones
    area = float(higher_P.mean())
    variance = sum(float(part.var(ddof=1)) / len(part) for part in (higher_P, higher_Q) if len(part) > 1)
    half = Z * variance**0.5
    return area, max(0.0, area - half), min(1.0, area + half)


def of_matthews(gold_N: NDArray[np.int64], predicted_N: NDArray[np.int64]) -> tuple[float, float]:
    """Returns (low, high) of Matthews' correlation of two classes, 0 and 1."""
    counts = np.bincount(2 * gold_N + predicted_N, minlength=4)
    drawn = np.random.default_rng(0).multinomial(counts.sum(), counts / counts.sum(), DRAWS).astype(np.float64)
    zero_zero, zero_one, one_zero, one_one = drawn.T
    margins = (one_one + zero_one) * (one_one + one_zero) * (zero_zero + zero_one) * (zero_zero + one_zero)
    found = (one_one * zero_zero - zero_one * one_zero) / np.sqrt(np.maximum(margins, 1))
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
