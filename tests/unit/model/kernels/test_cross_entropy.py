from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gpt1_ds.architecture import blocking
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.kernels.cross_entropy import SHARP, Target, chunk_logits, head_loss
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.token_scores import head_hits

TOKENS, WIDTH, ROWS, REAL = 37, 16, 128, 100


def posed(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """States, head weights with pad rows, labels and token weights, some of them 0."""
    generator = torch.Generator().manual_seed(3)
    hidden_TD = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight_VD = (0.3 * torch.randn(ROWS, WIDTH, generator=generator)).to(dtype)
    weight_VD[REAL:] = 0
    labels_T = torch.randint(REAL, (TOKENS,), generator=generator)
    weights_T = torch.rand(TOKENS, generator=generator) / TOKENS
    weights_T[::5] = 0
    return hidden_TD, weight_VD.requires_grad_(), labels_T, weights_T


def plain(dtype: torch.dtype, scale: float, smoothing: float) -> tuple[torch.Tensor, ...]:
    """Loss and gradients in float64, of the same rounded numbers."""
    hidden, weight, labels, weights = posed(dtype)
    hidden_TD, weight_VD = (x.detach().double().requires_grad_() for x in (hidden, weight))
    nats_T = F.cross_entropy(hidden_TD @ weight_VD[:REAL].T, labels, reduction="none", label_smoothing=smoothing)
    loss = (nats_T * weights.double()).sum()
    (scale * loss).backward()
    assert hidden_TD.grad is not None
    assert weight_VD.grad is not None
    return loss.detach(), hidden_TD.grad, weight_VD.grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 7, TOKENS])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [(torch.float32, 1.0, 1e-5), (torch.float32, 0.3, 1e-5), (torch.bfloat16, 1.0, 2e-2), (torch.float16, 2e4, 5e-3)],
)
def test_equals_the_plain_path(
    dtype: torch.dtype, scale: float, tolerance: float, chunk: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, labels, weights = posed(dtype)
    monkeypatch.setitem(blocking.CHUNK_BYTES, "cpu", chunk * ROWS * hidden.element_size())
    monkeypatch.setitem(blocking.LOSS_LOGITS, "cpu", 3 * ROWS)
    target = Target.smoothed(smoothing, REAL)
    assert (target == SHARP) is (smoothing == 0)
    loss = head_loss(hidden, weight, labels, weights, REAL, TensorParallel(connect_alone()), target=target)
    (scale * loss).backward()
    for found, expected in zip((loss.detach(), hidden.grad, weight.grad), plain(dtype, scale, smoothing), strict=True):
        assert found is not None
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error <= tolerance
    assert not weight.grad[REAL:].any(), "padding never learns"


def test_evaluation_gives_the_same_loss_and_no_gradient() -> None:
    hidden, weight, labels, weights = posed(torch.float32)
    tensor = TensorParallel(connect_alone())
    trained = head_loss(hidden, weight, labels, weights, REAL, tensor)
    with torch.no_grad():
        evaluated = head_loss(hidden, weight, labels, weights, REAL, tensor)
    assert torch.equal(trained.detach(), evaluated)
    assert not evaluated.requires_grad


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, TOKENS])
def test_hits_are_weights_of_labels_with_the_highest_logit(
    chunk: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, labels, weights = posed(torch.float32)
    monkeypatch.setitem(blocking.CHUNK_BYTES, "cpu", chunk * ROWS * hidden.element_size())
    bias = torch.linspace(-1, 1, ROWS) if biased else None
    with torch.no_grad():
        logits_TV = hidden @ weight.T + (0 if bias is None else bias)
        labels[::2] = logits_TV[::2, :REAL].argmax(1)
        wanted = weights[logits_TV[:, :REAL].argmax(1) == labels].sum()
    assert 0 < wanted < weights.sum()
    found = head_hits(chunk_logits(hidden, weight, bias), labels, weights, REAL, TensorParallel(connect_alone()))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert not found.requires_grad


def test_of_equal_logits_the_first_is_the_highest() -> None:
    hidden, weight, labels, weights = torch.ones(2, 4), torch.ones(ROWS, 4), torch.tensor([0, 3]), torch.ones(2)
    assert (
        head_hits(chunk_logits(hidden, weight, None), labels, weights, REAL, TensorParallel(connect_alone())).item()
        == 1
    )
