"""The next token of every row of a batch, the likeliest or drawn.

A draw is a pure function of (seed, number of tokens written, id), as a dropout mask is of its place (model/dropout.py):
there is no generator with a state, so a row draws the same in any batch and on any device.

Shapes: R rows, V vocabulary rows of the model (padded).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.model import dropout

NEARLY_ONE = 1 - 2**-24  # the largest number below 1 in fp32
MASS = 1 << 40  # of all probabilities, in whole numbers, whose sums are the same in any order


def chosen(logits_RV: Tensor, sampling: Sampling, seeds: Sequence[int], written: int) -> list[int]:
    """Returns one id a row: the likeliest at temperature 0, else one drawn from the top_k and top_p that are left. The
    rows have `seeds`, and `written` tokens so far.
    """
    if sampling.drawn_at == 0:
        return logits_RV.argmax(-1).tolist()
    scores_RV = kept(logits_RV.float(), sampling)
    return (scores_RV - times(seeds, written, scores_RV.shape[1], scores_RV.device).log()).argmax(-1).tolist()


def kept(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """Returns logits at the temperature, the likeliest 0, -inf for ids that top_k and top_p leave out. Ids that are as
    likely as the last one that is left are left, too.
    """
    below_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)).double()  # so that the likeliest is 0 at any temperature
    scores_RV = (below_RV / sampling.drawn_at).float()
    if sampling.top_k:
        last_R1 = scores_RV.topk(min(sampling.top_k, scores_RV.shape[1])).values[:, -1:]
        scores_RV = scores_RV.masked_fill(scores_RV < last_R1, -torch.inf)
    if sampling.top_p < 1:
        ordered_RV = scores_RV.sort(descending=True).values
        mass_RV = (ordered_RV.double().softmax(-1) * MASS).long()
        before_RV = mass_RV.cumsum(-1) - mass_RV  # of likelier ids
        count_R1 = (before_RV < sampling.top_p * MASS).sum(-1, keepdim=True)
        scores_RV = scores_RV.masked_fill(scores_RV < ordered_RV.gather(1, count_R1 - 1), -torch.inf)
    return scores_RV


def times(seeds: Sequence[int], written: int, ids: int, device: torch.device) -> Tensor:
    """Returns fp32 [R, V], exponentially distributed with mean 1. The id with the smallest time / probability is the
    one with its probability: the first of independent events that come at these rates (Luce 1959).
    """
    keys_R = torch.from_numpy(dropout.row_keys(0, written, np.array(seeds, dtype=np.uint64)))
    bits_RV, _ = dropout.site_keys(keys_R.to(device), 0, heads=ids)  # each id in the place of a head
    # 31 bits, which fp32 holds exactly where it matters, near 0
    uniform_RV = ((bits_RV & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log1p(-uniform_RV.clamp(max=NEARLY_ONE))
