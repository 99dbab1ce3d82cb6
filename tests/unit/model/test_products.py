"""Products in 16 bits by way of fp32 and by torch's own kernels have one definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpt1_ds.model import products
from gpt1_ds.model.lstm import LstmCell

EPSILON = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # of one rounding, relative


@pytest.fixture(params=[True, False], ids=["wide", "torch's own"])
def widened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(products, "SLOW", frozenset(EPSILON) if request.param else frozenset())
    return bool(request.param)


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def rounded_once(found: Tensor, exact: Tensor) -> bool:
    """Whether `found` is float64's result, rounded once; sums in fp32 may move it by another unit."""
    assert found.dtype in EPSILON
    error = (found.double() - exact).abs()
    return bool((error <= 1.5 * EPSILON[found.dtype] * exact.abs() + 1e-5).all())


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_linear_and_its_gradients(dtype: torch.dtype, biased: bool, widened: bool) -> None:
    values = [drawn(dtype, 3, 5, 64), drawn(dtype, 48, 64) / 8, *([drawn(dtype, 48)] if biased else [])]
    mine, exact = (
        [value.detach().to(kind).clone().requires_grad_() for value in values] for kind in (dtype, torch.float64)
    )
    found, wanted = products.linear(*mine), torch.nn.functional.linear(*exact)
    grad = drawn(dtype, 3, 5, 48).clone()
    found.backward(grad)
    wanted.backward(grad.double())
    # torch's own kernels round the product before they add the bias
    assert rounded_once(found, wanted) or (biased and not widened)
    assert rounded_once(mine[0].grad, exact[0].grad)
    assert rounded_once(mine[1].grad, exact[1].grad)
    if biased:
        assert rounded_once(mine[2].grad, exact[2].grad)


@pytest.mark.usefixtures("widened")
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("given", [True, False])
def test_batched(dtype: torch.dtype, given: bool) -> None:
    a_GMK, b_GKN = drawn(dtype, 4, 6, 32), drawn(dtype, 4, 32, 7)
    out = torch.full((4, 6, 7), float("nan"), dtype=dtype) if given else None
    found = products.batched(a_GMK, b_GKN, 0.125, out)
    assert rounded_once(found, 0.125 * (a_GMK.double() @ b_GKN.double()))
    assert out is None or found is out


@pytest.mark.usefixtures("widened")
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("prepare", [products.wide, lambda x: x], ids=["widened before", "as it is"])
def test_product(dtype: torch.dtype, biased: bool, prepare: Callable[[Tensor], Tensor]) -> None:
    a_MK, b_KN, bias_N = drawn(dtype, 6, 32), drawn(dtype, 32, 7), drawn(dtype, 7)
    out = torch.full((6, 7), float("nan"), dtype=dtype)
    found = products.product(a_MK, prepare(b_KN), out, bias_N if biased else None)
    assert found is out
    assert rounded_once(found, a_MK.double() @ b_KN.double() + (bias_N.double() if biased else 0))


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
def test_the_recurrence_keeps_16_bits_between_layers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLOW", frozenset(EPSILON))
    cell, x_SBD = LstmCell(8, 12).to(dtype), drawn(dtype, 5, 2, 8)
    exact = torch.nn.LSTM(8, 12).double()
    exact.load_state_dict({name: value.double() for name, value in cell.state_dict().items()})
    whole_SBU, last = cell(x_SBD)
    wanted_SBU, _ = exact(x_SBD.double())
    assert rounded_once(whole_SBU, wanted_SBU)
    first_SBU, middle = cell(x_SBD[:3])
    rest_SBU, end = cell(x_SBD[3:], middle)
    assert torch.equal(torch.cat([first_SBU, rest_SBU]), whole_SBU), "a state that is handed on loses nothing"
    assert all(map(torch.equal, last, end))


def test_fp32_and_other_devices_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLOW", frozenset(EPSILON))
    assert products.slow(torch.ones(1, dtype=torch.bfloat16))
    assert not products.slow(torch.ones(1))
    assert not products.slow(torch.ones(1, dtype=torch.bfloat16, device="meta"))


def test_a_run_says_that_its_products_are_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLOW", frozenset({torch.bfloat16}))
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert "train.precision=bf16" in (products.note("bf16", cpu) or "")
    assert [products.note(*one) for one in (("fp16", cpu), ("fp32", cpu), ("bf16", gpu))] == [None, None, None]
