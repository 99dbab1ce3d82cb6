"""Draws have the model's probabilities, and hang on nothing but seed, place and id."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt1_ds.evaluation.drawing import chosen, kept, times
from gpt1_ds.evaluation.sampling import Sampling

CPU = torch.device("cpu")


def shares(logits_V: Tensor, sampling: Sampling, draws: int) -> Tensor:
    drawn = chosen(logits_V.repeat(draws, 1), sampling, range(draws), 3)
    return torch.bincount(torch.tensor(drawn), minlength=len(logits_V)) / draws


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-7])
def test_nearly_no_temperature_takes_the_likeliest(temperature: float) -> None:
    assert shares(torch.tensor([900.0, -torch.inf, 901.0, 3.0]), Sampling(temperature=temperature), 20).tolist() == [
        *(0, 0, 1, 0)
    ]


def test_temperature_one_draws_by_the_models_probabilities() -> None:
    found = shares(torch.tensor([0.5, 0.3, 0.2]).log() + 40, Sampling(temperature=1), 4000)
    assert torch.allclose(found, torch.tensor([0.5, 0.3, 0.2]), atol=0.04)  # five standard deviations


def test_of_many_ids_each_has_its_probability() -> None:
    """Also those that come once in a hundred thousand draws: a rounded clock would take them too often."""
    ids, draws = 2000, 200
    rare = torch.full((ids,), 1e-5)
    rare[7] = 1 - rare.sum() + rare[7]
    others = sum(
        sum(token != 7 for token in chosen(rare.log().repeat(draws, 1), Sampling(temperature=1), range(draws), step))
        for step in range(50)
    )
    assert 0.02 * 10_000 - 5 * 14 < others < 0.02 * 10_000 + 5 * 14


def test_times_are_exponential_and_independent() -> None:
    times_RV = times(range(300), 0, 4000, CPU).double()
    assert times_RV.min() > 0
    for order, moment in ((1, 1.0), (2, 2.0), (3, 6.0)):
        assert times_RV.pow(order).mean().item() == pytest.approx(moment, rel=0.02)
    ordered = times_RV.flatten().sort().values
    for share in (0.001, 0.5, 0.999):
        at = ordered[int(share * len(ordered))].item()
        assert at == pytest.approx(-math.log1p(-share), rel=0.15), "five standard deviations of the first"
    for other in (times(range(1, 301), 0, 4000, CPU), times(range(300), 1, 4000, CPU), times_RV.roll(1, 1)):
        pair = torch.stack([times_RV.flatten(), other.double().flatten()])
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.005, "five standard deviations"


def test_a_draw_hangs_on_its_seed_its_place_and_its_id_alone() -> None:
    logits_RV, sampling = torch.randn(6, 500, generator=torch.Generator().manual_seed(1)), Sampling(temperature=1)
    seeds = [5, 0, 5, 2**63 - 1, 7, 9]
    whole = chosen(logits_RV, sampling, seeds, 4)
    assert [chosen(row[None], sampling, [seed], 4)[0] for row, seed in zip(logits_RV, seeds, strict=True)] == whole
    wider_RV = torch.cat([logits_RV, torch.full((6, 12), -torch.inf)], 1)
    assert chosen(wider_RV, sampling, seeds, 4) == whole
    assert chosen(logits_RV, sampling, seeds, 5) != whole
    assert chosen(logits_RV[:1].expand(6, -1), sampling, seeds, 4)[0] == chosen(logits_RV[:1], sampling, [5], 4)[0]


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    probabilities = torch.tensor([0.02, 0.4, 0.03, 0.25, 0.2, 0.1])
    logits_1V = probabilities.log()[None]

    def left(**settings: float) -> set[int]:
        scores_1V = kept(logits_1V, Sampling(temperature=1, **settings))  # type: ignore[arg-type]
        return {*np.flatnonzero(scores_1V[0].isfinite()).tolist()}

    assert left(top_k=2) == {1, 3}
    assert left(top_k=100) == {*range(6)}
    assert left(top_p=0.39) == {1}
    assert left(top_p=0.41) == {1, 3}
    assert left(top_p=0.849) == {1, 3, 4}
    assert left(top_p=0.999) == {*range(6)}
    assert left(top_k=3, top_p=0.5) == {1, 3}
    found = shares(probabilities.log(), Sampling(temperature=1, top_p=0.849), 4000)
    assert torch.allclose(found, torch.tensor([0, 0.4, 0, 0.25, 0.2, 0]) / 0.85, atol=0.04)


def test_the_likeliest_at_temperature_zero() -> None:
    assert chosen(torch.tensor([[0.1, 3.0], [2.0, -1.0]]), Sampling(temperature=0), [1, 1], 0) == [1, 0]
