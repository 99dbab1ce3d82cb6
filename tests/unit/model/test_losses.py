"""Losses of sentence vectors and smoothed targets against their formulas, and pooling against a loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpt1_ds.architecture.facts import COLUMNS
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.heads import pooled
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import LanguageLoss, Loss, SentenceLoss, TaskLoss, TokenLoss
from gpt1_ds.model.states import States

E, D = 6, 5
WEIGHTS = torch.full((E,), 1 / E)
UNREAD = (torch.zeros(1),) * 3


def loss_of(name: Any, vectors_BD: torch.Tensor, targets_EK: torch.Tensor, *logits: torch.Tensor) -> float:
    spec = HeadSpec(3, len(vectors_BD) // E, kind="mean", loss=name, margin=0.5, group=3)
    facts_BF = torch.zeros(len(vectors_BD), COLUMNS, dtype=torch.int64)
    states = States(torch.zeros(1), facts_BF, vectors_BD=vectors_BD, scores=logits[0] if logits else None)
    return float(SentenceLoss(spec)(states, (*UNREAD, targets_EK, WEIGHTS)))


def vectors(texts: int) -> torch.Tensor:
    return torch.randn(E * texts, D, generator=torch.Generator().manual_seed(texts))


def test_nli_is_cross_entropy() -> None:
    logits_EK = torch.randn(E, 3, generator=torch.Generator().manual_seed(0))
    classes_E = torch.arange(E) % 3
    found = loss_of("nli", vectors(2), F.one_hot(classes_E, 3).float(), logits_EK)
    assert found == pytest.approx(float(F.cross_entropy(logits_EK, classes_E)), abs=1e-6)


def smoothed_losses() -> list[tuple[Loss, States, tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]]:
    """Of each loss that smooths 0.1 of its targets: what it is given, and the logits and classes that it stands for."""
    logits_EK = torch.randn(E, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    classes_E, tensor = torch.arange(E) % 3, TensorParallel(connect_alone())
    facts_BF, targets_EK = torch.zeros(E, COLUMNS, dtype=torch.int64), F.one_hot(torch.arange(E) % 3, 3).float()
    no_tokens = (torch.zeros(1, E, dtype=torch.int64), torch.zeros(1, E))
    of_task = TaskLoss(HeadSpec(3, 1, lm_coefficient=0.0), LanguageLoss(3, tensor, 0.5), 0.1)
    of_nli = SentenceLoss(HeadSpec(3, 2, kind="mean", loss="nli"), 0.1)
    states_1EK, at_E = logits_EK.unsqueeze(0), torch.zeros(E, dtype=torch.int64)
    pairs = torch.zeros(2 * E, COLUMNS, dtype=torch.int64)
    return [
        (
            of_task,
            States(torch.zeros(1), facts_BF, scores=states_1EK),
            (*no_tokens, at_E, targets_EK, WEIGHTS),
            logits_EK,
            classes_E,
        ),
        (
            of_nli,
            States(torch.zeros(1), pairs, vectors_BD=vectors(2), scores=logits_EK),
            (*UNREAD, targets_EK, WEIGHTS),
            logits_EK,
            classes_E,
        ),
        (
            LanguageLoss(3, tensor, 0.1),
            States(states_1EK, facts_BF, weight_VD=torch.eye(3)),
            (classes_E.unsqueeze(0), WEIGHTS.unsqueeze(0)),
            logits_EK,
            classes_E,
        ),
    ]


@pytest.mark.parametrize("number", range(3))
def test_targets_are_smoothed_in_training_alone(number: int) -> None:
    loss, states, labels, logits_EK, classes_E = smoothed_losses()[number]
    trained = loss(states, labels)
    wanted = F.cross_entropy(logits_EK, classes_E, label_smoothing=0.1)
    torch.testing.assert_close(trained, wanted, rtol=0, atol=1e-6)
    found, expected = (torch.autograd.grad(value, logits_EK, retain_graph=True)[0] for value in (trained, wanted))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        evaluated = loss(states, labels)
    torch.testing.assert_close(evaluated, F.cross_entropy(logits_EK, classes_E).detach(), rtol=0, atol=1e-6)


def test_tags_are_smoothed_in_training_alone() -> None:
    """Two rows of three tokens and five tags; the last token of the second row fills it up, and one has no tag."""
    torch.manual_seed(0)
    scores_SB5 = torch.randn(3, 2, 5, requires_grad=True)
    tags_SB = torch.tensor([[1, 4], [0, -100], [2, -100]])
    counted_SB = tags_SB >= 0
    targets_SB5 = F.one_hot(tags_SB.clamp(min=0), 5) * (counted_SB / counted_SB.sum())[..., None]
    spec = HeadSpec(5, 1, lm_coefficient=0.0, kind="tags")
    loss = TokenLoss(spec, LanguageLoss(7, TensorParallel(connect_alone())), 0.1)
    states = States(torch.zeros(3, 2, 4), torch.zeros(2, 3, dtype=torch.int64), scores=scores_SB5)
    labels = (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2), torch.tensor([3, 2]), targets_SB5)
    flat = scores_SB5.flatten(0, 1), tags_SB.flatten()
    wanted = F.cross_entropy(*flat, ignore_index=-100, label_smoothing=0.1)
    torch.testing.assert_close(loss(states, labels), wanted, rtol=0, atol=1e-6)
    right = (scores_SB5.argmax(-1) == tags_SB)[counted_SB].float().mean()
    parts = loss.parts(loss.scores[-1], labels)
    assert parts is not None
    assert parts.tolist() == pytest.approx([wanted.item(), right.item()], abs=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(loss(states, labels), F.cross_entropy(*flat, ignore_index=-100), rtol=0, atol=1e-6)


def test_parts_of_a_task_are_its_loss_and_what_is_right() -> None:
    loss, states, labels, logits_EK, classes_E = smoothed_losses()[0]
    trained = loss(states, labels)
    assert isinstance(loss, TaskLoss)
    parts = loss.parts(loss.scores[-1], labels)
    assert parts is not None
    right = float((logits_EK.argmax(1) == classes_E).float().mean())
    assert parts.tolist() == pytest.approx([trained.item(), right], abs=1e-6), "the whole loss, where nothing is added"
    assert 0 < right < 1


def test_triplet_is_a_margin() -> None:
    rows = vectors(3).view(E, 3, D)
    wanted = [max(float((a - p).norm() - (a - n).norm()) + 0.5, 0.0) for a, p, n in rows]
    assert 0 < sum(one == 0 for one in wanted) < E, "both sides of the margin are there"
    found = loss_of("triplet", vectors(3), torch.ones(E, 2))
    assert found == pytest.approx(sum(wanted) / E, abs=1e-5)


def test_cosine_is_a_squared_difference_whatever_trains() -> None:
    rows, score_E = vectors(2).view(E, 2, D), torch.linspace(0, 1, E)
    wanted = (F.cosine_similarity(rows[:, 0], rows[:, 1]) - score_E).square().mean()
    for name in ("cosine", "nli", "triplet", "ranking"):
        assert loss_of(name, vectors(2), score_E.unsqueeze(1)) == pytest.approx(float(wanted), abs=1e-6)


def test_ranking_stays_in_its_group() -> None:
    rows = vectors(2).view(E, 2, D)
    total = 0.0
    for start in (0, 3):
        for u in range(start, start + 3):
            cosines = [20 * float(F.cosine_similarity(rows[u, 0], rows[v, 1], dim=0)) for v in range(start, start + 3)]
            total -= cosines[u - start] - math.log(sum(map(math.exp, cosines)))
    assert loss_of("ranking", vectors(2), torch.ones(E, 2)) == pytest.approx(total / E, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_padding_is_not_pooled(pooling: Any) -> None:
    hidden_SBD = -torch.rand(7, 3, D) - 1  # padding would be the largest if it were 0
    length_B = torch.tensor([7, 1, 4])
    found = pooled(hidden_SBD.bfloat16(), length_B, pooling, TensorParallel(connect_alone()))
    assert found.dtype == torch.float32
    for row, length in enumerate(length_B.tolist()):
        states = hidden_SBD[:length, row].bfloat16().float()
        wanted = {"mean": states.mean(0), "max": states.max(0).values, "cls": states[0]}[pooling]
        torch.testing.assert_close(found[row], wanted, rtol=0, atol=1e-6)
