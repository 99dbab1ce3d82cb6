"""The kernel of the loss in Triton's interpreter (helpers/interpreter.py starts this file) against float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.model.kernels import cross_entropy_triton as kernel
from gpt1_ds.model.kernels.cross_entropy import Target

TOKENS, COLUMNS, REAL = 5, 128, 100
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 5e-3)], ids=str
)

SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def posed(dtype: torch.dtype, columns: int = COLUMNS, real: int = REAL) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with garbage in padding, labels, and weights, some of them 0."""
    torch.manual_seed(columns)
    logits_CV = (3 * torch.randn(TOKENS, columns)).to(dtype)
    logits_CV[0, 7] = 60.0  # nearly all of the probability
    logits_CV[:, real:] = math.nan
    labels_C, weights_C = torch.randint(real, (TOKENS,)), torch.rand(TOKENS)
    labels_C[:2], weights_C[2] = torch.tensor([7, real - 1]), 0.0
    return logits_CV, labels_C, weights_C


def plain(logits_CV: Tensor, labels_C: Tensor, weights_C: Tensor, real: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """(loss, gradient of all columns) in float64."""
    leaf = logits_CV.double()[:, :real].requires_grad_()
    nats_C = F.cross_entropy(leaf, labels_C, reduction="none", label_smoothing=smoothing)
    loss = (nats_C * weights_C.double()).sum()
    (found,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), F.pad(found, (0, logits_CV.shape[1] - real))


def agree(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return float((found.double() - wanted).norm()) <= tolerance * float(wanted.norm())


@SMOOTHINGS
@DTYPES
@pytest.mark.parametrize(("columns", "real"), [(COLUMNS, REAL), (9000, 8999), (4096, 4096), (16, 8)])
def test_loss_and_gradient_in_one(
    dtype: torch.dtype, tolerance: float, columns: int, real: int, smoothing: float
) -> None:
    logits_CV, labels_C, weights_C = posed(dtype, columns, real)
    wanted_loss, wanted = plain(logits_CV, labels_C, weights_C, real, smoothing)
    target = Target.smoothed(smoothing, real)
    logsumexp_C, predicted_C = kernel.sums(logits_CV, labels_C, 0, real, *target)
    loss = ((logsumexp_C - predicted_C) * weights_C).sum()
    assert abs(float(loss) - float(wanted_loss)) <= 1e-5 * max(1.0, float(wanted_loss))
    again = kernel.sums_and_gradient(logits_CV, labels_C, weights_C, 0, real, 4096.0, *target)
    assert torch.equal(again, torch.stack([logsumexp_C, predicted_C]))
    assert agree(logits_CV / 4096.0, wanted, tolerance)
    assert not logits_CV[:, real:].any(), "padding never learns"


@SMOOTHINGS
@DTYPES
@pytest.mark.parametrize("ranks", [2, 4])
def test_columns_cut_over_ranks(dtype: torch.dtype, tolerance: float, ranks: int, smoothing: float) -> None:
    """Of four ranks, the last one has padding alone."""
    real = 90
    whole_CV, labels_C, weights_C = posed(dtype, COLUMNS, real)
    wanted_loss, wanted = plain(whole_CV, labels_C, weights_C, real, smoothing)
    target = Target.smoothed(smoothing, real)
    columns = COLUMNS // ranks
    parts = [part.contiguous() for part in whole_CV.split(columns, 1)]
    places = [(rank * columns, min(columns, max(0, real - rank * columns))) for rank in range(ranks)]
    found = torch.stack(
        [kernel.sums(part, labels_C, *place, *target) for part, place in zip(parts, places, strict=True)]
    )
    logsumexp_C, predicted_C = found[:, 0].logsumexp(0), found[:, 1].sum(0)
    loss = ((logsumexp_C - predicted_C) * weights_C).sum()
    assert abs(float(loss) - float(wanted_loss)) <= 1e-5 * float(wanted_loss)
    for part, place in zip(parts, places, strict=True):
        kernel.gradient(part, labels_C, weights_C, logsumexp_C, *place, 1.0, *target)
    assert agree(torch.cat(parts, 1), wanted, tolerance)


def test_a_nan_is_not_hidden() -> None:
    logits_CV, labels_C, _ = posed(torch.float32)
    logits_CV[1, 3] = math.nan
    logsumexp_C, _ = kernel.sums(logits_CV, labels_C, 0, REAL)
    assert logsumexp_C.isnan().tolist() == [False, True, False, False, False]
