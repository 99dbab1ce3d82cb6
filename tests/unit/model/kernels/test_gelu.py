"""Bias and activation in one, against torch's own in float64: value, slope, bias, in every type, several blocks."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpt1_ds.model.kernels import gelu

PRECISION = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of numbers up to 1, and times them


@pytest.mark.parametrize(("kind", "approximate"), [("gelu_tanh", "tanh"), ("gelu", "none")])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("block", [40, 1 << 19])
@pytest.mark.parametrize("dtype", PRECISION)
def test_equals_torch(
    dtype: torch.dtype, block: int, compiling: bool, kind: Any, approximate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)  # the form that a compiler is given
    monkeypatch.setattr(gelu, "BLOCK_ELEMENTS", block)
    torch.manual_seed(0)
    x = (3 * torch.randn(7, 3, 16)).to(dtype).requires_grad_()
    bias = torch.randn(16).to(dtype).requires_grad_()
    weight = torch.randn(7, 3, 16).to(dtype)
    wide, wide_bias = (one.detach().double().requires_grad_() for one in (x, bias))
    out = gelu.bias_activation(x, bias, kind)
    out.backward(weight)
    expected = F.gelu(wide + wide_bias, approximate=approximate)
    expected.backward(weight.double())
    near = PRECISION[dtype]
    assert out.dtype == dtype
    assert torch.allclose(out.double(), expected, rtol=near, atol=near)
    assert torch.allclose(x.grad.double(), wide.grad, rtol=2 * near, atol=2 * near)
    assert torch.allclose(bias.grad.double(), wide_bias.grad, rtol=2 * near, atol=20 * near)
    with torch.no_grad():
        assert torch.equal(gelu.bias_activation(x, bias, kind), out), "the same without a slope"


@pytest.mark.parametrize("kind", ["gelu_tanh", "gelu"])
def test_large_inputs_stay_finite(kind: Any) -> None:
    x = torch.tensor([[-3e4, -1e3, -40.0, 0.0, 40.0, 1e3, 3e4]], requires_grad=True)
    out = gelu.bias_activation(x, torch.zeros(7), kind)
    out.sum().backward()
    assert torch.allclose(out, x.relu(), atol=1e-30)
    assert torch.allclose(x.grad, torch.tensor([[0.0, 0, 0, 0.5, 1, 1, 1]]), atol=1e-30)
